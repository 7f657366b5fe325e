#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/torch_compat/private_members.h>
#include "opt_levels/properties.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace apex::amp::detail {
namespace {

void describe_session(const std::shared_ptr<Session>& session, CheckpointContent& content) {
  if (!session || !session->enabled()) return;
  content.opt_level = opt_level_of(session);
  content.properties = opt_levels::describe(session->settings.properties);
  for (const auto& scaler : session->scalers) {
    content.scalers.push_back({scaler.loss_scale(), scaler.unskipped(), scaler.dynamic()});
  }
  if (const auto history = session->float8_history()) content.float8 = {history->parameters(), history->state()};
}

// The first optimizer whose state is sharded over processes; null if there is none.
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

// All ranks gather, one rank writes, and all ranks learn whether it succeeded.
void write_from_one_rank(const ShardedOptimizer& sharded, const std::function<void()>& writes) {
  std::string error;
  try {
    if (sharded.writes_file()) writes();
  } catch (const std::exception& failure) {
    error = torch_compat::text_of(failure);
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

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Values = std::map<std::string, at::Tensor>;

/// Adds the values of tied tensors under all their names, because Python's `save_model` writes only one of them.
void add_tied_names(const NamedTensors& tensors, Values& values) {
  std::map<const at::TensorImpl*, at::Tensor> found;
  for (const auto& [name, tensor] : tensors) {
    const auto value = values.find(name);
    if (value != values.end()) found.emplace(tensor.unsafeGetTensorImpl(), value->second);
  }
  for (const auto& [name, tensor] : tensors) {
    const auto value = found.find(tensor.unsafeGetTensorImpl());
    if (value != found.end()) values.emplace(name, value->second);
  }
}

template <class Parts>
auto& one_model(const Parts& parts) {
  TORCH_CHECK_VALUE(parts.models.size() == 1, "a safetensors file holds the weights of one model, ", parts.models.size(),
                    " were given. Give each a file of its own.");
  return *parts.models[0];
}

/// The sessions that may keep masters of the model, and that of its handle, or the newest.
template <class Parts>
Sessions sessions_of(const Parts& parts, const NamedTensors& tensors) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back(tensor);
  return sessions_that_know(all, parts.session ? parts.session : current_session());
}

/// Errors: RuntimeError if a sharded optimizer trains the model.
void check_masters_are_here(const Session& session, const NamedTensors& tensors) {
  for (const auto& stash : stashes_of(session)) {
    const auto is_trained = [&](const auto& item) { return stash->takes_grad_of(item.second); };
    if (std::any_of(tensors.begin(), tensors.end(), is_trained)) stash->check_masters_are_here("save_safetensors");
  }
}

void check_values(const std::string& path, const torch::nn::Module& model, const Values& values) {
  std::vector<ModelTensor> content;
  for (const auto& [name, value] : values) content.push_back({name, c10::toString(value.scalar_type()), value});
  try {
    check_fits(model, content, "this model");
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(Error, "cannot load '" + path + "': " + error.what_without_backtrace());
  }
}

}  // namespace

void save_safetensors(const std::string& path, const SavedParts& parts, const SaveSafetensorsOptions& options) {
  const auto& model = one_model(parts);
  const auto tensors = tensors_of(model);
  const Sessions sessions = options.masters() ? sessions_of(parts, tensors) : Sessions();
  for (const auto& session : sessions) {
    if (session->has_masters()) check_masters_are_here(*session, tensors);
  }
  TensorFile file;
  file.metadata = options.metadata();
  file.metadata.emplace("format", "pt");
  std::map<const at::TensorImpl*, std::string> first_names;
  for (const auto& [name, tensor] : tensors) {
    const auto [first, is_first] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_first && options.tied_once()) {
      file.metadata.emplace(name, first->second);
      continue;
    }
    const at::Tensor master = master_values_of(tensor, sessions);
    file.tensors.emplace_back(name, master.defined() ? master : widened(tensor));
  }
  write_safetensors(path, file);
}

void load_safetensors(const std::string& path, const LoadedParts& parts) {
  auto& model = one_model(parts);
  const auto tensors = tensors_of(model);
  const TensorFile file = read_safetensors(path);
  TORCH_CHECK(!is_checkpoint(file), "cannot load '", path,
              "' as weights alone: it is a checkpoint of amp::save_checkpoint. Read it with amp::load_checkpoint.");
  Values values(file.tensors.begin(), file.tensors.end());
  add_tied_names(tensors, values);
  check_values(path, model, values);
  const Sessions sessions = sessions_of(parts, tensors);
  load_values(sessions, [&] {
    for (const auto& [name, tensor] : tensors) {
      remove_internal_overlap(tensor);
      assign(tensor, values.at(name), sessions);
    }
  });
}

}  // namespace apex::amp::detail
