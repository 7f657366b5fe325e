#include <apex_cpp/amp/checkpoint/checkpoint.h>
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/generators.h>
#include <apex_cpp/amp/checkpoint/model_content.h>
#include <apex_cpp/amp/checkpoint/part_state.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/session/session.h>

#include <functional>
#include <utility>

#include "opt_levels/properties.h"

namespace apex::amp::detail {
namespace {

void describe_session(const std::shared_ptr<Session>& session, CheckpointContent& content) {
  if (!session || !session->enabled()) return;
  content.opt_level = opt_level_of(session);
  content.properties = opt_levels::describe(session->settings.properties);
  for (const auto& scaler : session->scalers) {
    content.scalers.push_back({scaler.loss_scale(), scaler.unskipped(), scaler.dynamic()});
  }
}

// The first optimizer whose state is spread over processes; null if there is none.
const ShardedOptimizer* sharded_among(const SavedParts& parts) {
  for (const auto* optimizer : parts.optimizers) {
    if (const auto* sharded = dynamic_cast<const ShardedOptimizer*>(optimizer)) return sharded;
  }
  return nullptr;
}

void add_states(const SavedParts& parts, CheckpointContent& content) {
  const auto names = names_of(parts.models);
  for (const auto* optimizer : parts.optimizers) {
    const auto* stash = stash_of(*optimizer);
    TORCH_CHECK(!stash || !stash->inside_backward(),
                "amp::save_checkpoint was called inside a scale_loss block. Call it after the step.");
    content.optimizers.push_back(content_of(*optimizer, stash, names));
  }
}

void write_all(const std::string& path, const SavedParts& parts, const Metadata& metadata, CheckpointContent content) {
  content.library_version = APEX_CPP_VERSION;
  content.metadata = metadata;
  describe_session(session_of(parts.optimizers, parts.session), content);
  for (const auto* model : parts.models) content.models.push_back(content_of(*model));
  content.generators = generator_states();
  write_safetensors(path, file_of(content));
}

// All ranks gather, one writes, and all hear how it went.
void write_from_one_rank(const ShardedOptimizer& sharded, const std::function<void()>& writes) {
  std::string error;
  try {
    if (sharded.writes_file()) writes();
  } catch (const c10::Error& failure) {
    error = failure.what_without_backtrace();
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  sharded.agree_on_file(error);
}

}  // namespace

void save_checkpoint(const std::string& path, const SavedParts& parts, const Metadata& metadata) {
  CheckpointContent content;
  add_states(parts, content);
  const auto writes = [&] { write_all(path, parts, metadata, std::move(content)); };
  const auto* sharded = sharded_among(parts);
  sharded ? write_from_one_rank(*sharded, writes) : writes();
}

}  // namespace apex::amp::detail
