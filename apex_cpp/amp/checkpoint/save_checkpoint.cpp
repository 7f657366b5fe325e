#include <apex_cpp/amp/checkpoint/checkpoint.h>
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/generators.h>
#include <apex_cpp/amp/checkpoint/model_content.h>
#include <apex_cpp/amp/checkpoint/part_state.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/session.h>

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

}  // namespace

void save_checkpoint(const std::string& path, const SavedParts& parts, const Metadata& metadata) {
  const auto names = names_of(parts.models);
  CheckpointContent content;
  content.library_version = APEX_CPP_VERSION;
  content.metadata = metadata;
  describe_session(session_of(parts.optimizers, parts.session), content);
  for (const auto* model : parts.models) content.models.push_back(content_of(*model));
  for (const auto* optimizer : parts.optimizers) {
    const auto* stash = stash_of(*optimizer);
    TORCH_CHECK(!stash || !stash->inside_backward(),
                "amp::save_checkpoint was called inside a scale_loss block. Call it after the step.");
    content.optimizers.push_back(content_of(*optimizer, stash, names));
  }
  content.generators = generator_states();
  write_safetensors(path, file_of(content));
}

}  // namespace apex::amp::detail
