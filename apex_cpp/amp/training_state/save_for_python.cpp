#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/training_state.h>
#include <apex_cpp/amp/training_state/state_parts.h>
#include <apex_cpp/amp/training_state/training_file.h>

#include <unordered_map>
#include <utility>

namespace apex::amp::detail {
namespace {

// The masters of FusedAdam's master_weights, which are states.
void note_masters_in_states(OptimizerContent& content) {
  const ArchiveTree* states = child_of(content.archive, "state");
  if (!states) return;
  for (const auto& [position, state] : states->children) {
    const auto master = state.values.find("master_param");
    if (master == state.values.end() || !master->second.isTensor()) continue;
    auto& param = content.params.at(std::stoul(position));
    if (!param.master.defined()) param.master = master->second.toTensor();
  }
}

std::map<std::string, at::Tensor> weights_of(const torch::nn::Module& model, const OptimizerContent& optimizer,
                                             const std::shared_ptr<Session>& session) {
  std::map<std::string, at::Tensor> masters;
  for (const auto& param : optimizer.params) masters.emplace(param.name, param.master);
  std::map<std::string, at::Tensor> weights;
  std::unordered_map<const at::TensorImpl*, at::Tensor> of_tied;  // by the first name, which the optimizer's parameter has
  for (const auto& [name, tensor] : tensors_of(model)) {
    const auto of_optimizer = masters.find(full_name(0, name));
    at::Tensor master = of_optimizer != masters.end() ? of_optimizer->second : at::Tensor();
    master = of_tied.try_emplace(tensor.unsafeGetTensorImpl(), master).first->second;
    if (!master.defined() && session) master = session->master_values_of(tensor);
    weights.emplace(name, (master.defined() ? master : widened(tensor)).detach());
  }
  return weights;
}

std::optional<PythonScaler> scaler_of(const GradScaler& scaler) {
  const auto state = scaler.state_dict();
  if (state.is_empty()) return std::nullopt;
  return PythonScaler{state["scale"], state["growth_factor"], state["backoff_factor"],
                      static_cast<int64_t>(state["growth_interval"]), static_cast<int64_t>(state["_growth_tracker"])};
}

std::optional<PythonScaler> scaler_of(const std::shared_ptr<Session>& session) {
  if (!session || !session->enabled() || session->scalers.empty()) return std::nullopt;
  const auto& scaler = session->scalers.front();
  if (!scaler.dynamic()) return std::nullopt;
  TORCH_CHECK(session->scalers.size() == 1, "amp::save_for_python: amp has ", session->scalers.size(),
              " loss scalers, and a training state holds one. Write it with num_losses 1, or pass an amp::GradScaler.");
  return PythonScaler{scaler.loss_scale(), LossScaler::kScaleFactor, 1 / LossScaler::kScaleFactor, scaler.scale_window(),
                      scaler.unskipped()};
}

}  // namespace

void save_for_python(const std::string& path, const SavedParts& parts, const GradScaler* scaler) {
  check_one_of_each("amp::save_for_python", parts);
  const auto& model = *parts.models.front();
  const auto& optimizer = *parts.optimizers.front();
  const auto session = session_of(parts.optimizers, parts.session);
  OptimizerContent content = content_of(optimizer, stash_of(optimizer), names_of(parts.models));
  note_masters_in_states(content);
  const TrainingState state{weights_of(model, content, session), to_python(content),
                            scaler ? scaler_of(*scaler) : scaler_of(session)};
  write_safetensors(path, file_of(state));
}

}  // namespace apex::amp::detail
