#include <apex_cpp/amp/training_state.h>

#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/training_state/training_file.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

namespace apex::amp::detail {
namespace {

// Errors: RuntimeError naming `caller` unless there is one model and one optimizer, which is not sharded, outside of a
// `scale_loss` block.
template <class Parts>
void check_one_of_each(const char* caller, const Parts& parts) {
  TORCH_CHECK(parts.models.size() == 1 && parts.optimizers.size() == 1, caller, " was given ", parts.models.size(),
              " models and ", parts.optimizers.size(), " optimizers. Give each model with its optimizer a file of its own.");
  const auto& optimizer = *parts.optimizers.front();
  TORCH_CHECK(!dynamic_cast<const ShardedOptimizer*>(&optimizer), caller,
              " was given a sharded optimizer. Save it with amp::save_checkpoint, and load that into a FusedAdam.");
  const auto* stash = stash_of(optimizer);
  TORCH_CHECK(!stash || !stash->inside_backward(), caller, " was called inside a scale_loss block. Call it after the step.");
}

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
  const auto named = tensors_of(model);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  const Sessions sessions = sessions_that_know(tensors, session);  // parts may be models of other calls
  std::unordered_map<const at::TensorImpl*, at::Tensor> of_tied;   // by the first name, which the optimizer's parameter has
  for (const auto& [name, tensor] : named) {
    const auto of_optimizer = masters.find(full_name(0, name));
    at::Tensor master = of_optimizer != masters.end() ? of_optimizer->second : at::Tensor();
    master = of_tied.try_emplace(tensor.unsafeGetTensorImpl(), master).first->second;
    if (!master.defined()) master = master_values_of(tensor, sessions);
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

namespace {

constexpr const char* kLoader = "amp::load_from_python";

/// One load: the content of the file for `load_content`, then the loss scale.
class PythonLoading {
 public:
  PythonLoading(TrainingState state, const LoadedParts& parts, GradScaler* scaler)
      : state_(std::move(state)),
        optimizer_(*parts.optimizers.front()),
        model_(*parts.models.front()),
        scaler_(scaler),
        session_(session_of({&optimizer_}, parts.session)) {}

  const CheckpointContent& content() {
    check_scaler();
    content_.opt_level = opt_level_of(session_);
    content_.models.push_back(model_content());
    auto here = content_of(optimizer_, stash_of(optimizer_), names_of({&model_}));
    content_.optimizers.push_back(from_python(state_.optimizer, state_.weights, std::move(here)));
    content_.scalers = scalers();
    content_.generators = generator_states();  // stay as they are
    return content_;
  }

  /// After everything else was loaded.
  void load_scale(std::vector<std::string>& notes) {
    if (!state_.scaler) {
      if (own_scaler()) notes.push_back("The file has no loss scale; the dynamic loss scale stays as it is.");
    } else if (scaler_) {
      scaler_->load_state_dict(scaler_dict());
    } else if (own_scaler()) {
      own_scaler()->set_scale_window(state_.scaler->growth_interval);
    } else {
      notes.push_back(
          "The file's loss scale was not loaded: there is no dynamic loss scale here, and no amp::GradScaler was passed.");
    }
  }

 private:
  // amp's dynamic loss scaler, if the program has passed none; null otherwise.
  LossScaler* own_scaler() const {
    const bool has_one = !scaler_ && session_ && session_->enabled() && !session_->scalers.empty();
    return has_one && session_->scalers.front().dynamic() ? &session_->scalers.front() : nullptr;
  }

  void check_scaler() const {
    TORCH_CHECK(state_.scaler || !scaler_ || !scaler_->is_enabled(),
                "it has no loss scale for the amp::GradScaler. Pass the scaler to Python's apex_cpp.training_state.save, or "
                "none here.");
    if (!state_.scaler || !own_scaler()) return;
    const auto& saved = *state_.scaler;
    TORCH_CHECK(session_->scalers.size() == 1, "amp has ", session_->scalers.size(),
                " loss scalers here, and a training state holds one. Initialize amp with num_losses 1.");
    TORCH_CHECK(saved.growth_factor == LossScaler::kScaleFactor && saved.backoff_factor == 1 / LossScaler::kScaleFactor,
                "its loss scale grows by ", saved.growth_factor, " and backs off by ", saved.backoff_factor,
                ", amp's by 2 and 0.5. Use the same factors in Python, or pass an amp::GradScaler.");
  }

  std::vector<ModelTensor> model_content() const {
    std::map<std::string, at::Tensor> here;
    for (const auto& [name, tensor] : tensors_of(model_)) here.emplace(name, tensor);
    std::vector<ModelTensor> content;
    for (const auto& [name, value] : state_.weights) {
      const auto found = here.find(name);
      if (found != here.end()) check_dtype(name, value.scalar_type(), found->second.scalar_type());
      // The dtype here: the file's values are no conversion.
      content.push_back({name, c10::toString((found != here.end() ? found->second : value).scalar_type()), value});
    }
    return content;
  }

  static void check_dtype(const std::string& name, at::ScalarType in_file, at::ScalarType here) {
    const bool is_float = here == at::kHalf || here == at::kBFloat16 || here == at::kFloat;
    const bool fits = in_file == (is_float ? at::kFloat : here) || (here == at::kDouble && in_file == at::kFloat);
    TORCH_CHECK(fits, "'", name, "' is ", in_file, " in the file, expected ", is_float ? at::kFloat : here,
                ". A training state holds float32 for 16-bit tensors: write the file again.");
  }

  std::vector<ScalerContent> scalers() const {
    std::vector<ScalerContent> content;
    if (!session_ || !session_->enabled()) return content;
    for (const auto& scaler : session_->scalers) content.push_back({scaler.loss_scale(), scaler.unskipped(), scaler.dynamic()});
    if (state_.scaler && own_scaler()) content.front() = {state_.scaler->scale, state_.scaler->growth_tracker, true};
    return content;
  }

  GradScaler::StateDict scaler_dict() const {
    const auto& saved = *state_.scaler;
    return {{"scale", saved.scale},
            {"growth_factor", saved.growth_factor},
            {"backoff_factor", saved.backoff_factor},
            {"growth_interval", static_cast<double>(saved.growth_interval)},
            {"_growth_tracker", static_cast<double>(saved.growth_tracker)}};
  }

  TrainingState state_;
  torch::optim::Optimizer& optimizer_;
  torch::nn::Module& model_;
  GradScaler* scaler_;
  std::shared_ptr<Session> session_;
  CheckpointContent content_;
};

}  // namespace

std::vector<std::string> load_from_python(const std::string& path, const LoadedParts& parts, GradScaler* scaler) {
  check_one_of_each(kLoader, parts);
  const c10::InferenceMode off(false);  // an optimizer cannot step state tensors made in inference mode
  const TensorFile file = read_safetensors(path);
  std::optional<PythonLoading> loading;
  auto notes = load_content(kLoader, path, parts, [&]() -> const CheckpointContent& {
    loading.emplace(training_state_of(file), parts, scaler);
    return loading->content();
  });
  loading->load_scale(notes);
  return notes;
}

}  // namespace apex::amp::detail
