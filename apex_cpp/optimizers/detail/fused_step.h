#pragma once

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>
#include <apex_cpp/optimizers/stepped_param.h>
#include "kernels/optimizers.h"

#include <torch/optim/serialize.h>

#include <memory>
#include <string>
#include <vector>

namespace apex::optimizers::detail {

/// The options of a group as the kernel takes them. For source files.
kernels::AdamControl adam_control(const FusedAdamOptions& options);

}  // namespace apex::optimizers::detail

// What every fused optimizer class implements alike. For their source files.
namespace apex::optimizers::detail {

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make_amp_handle(Opt& optimizer, const std::shared_ptr<amp::detail::Session>& session) {
  return std::make_unique<amp::AmpOptimizer<Opt>>(std::move(optimizer), session);
}

// `owner` has the options: the optimizer, or one of its groups.
inline void check_not_negative(const std::string& owner, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0, owner, ": ", name, " must not be negative, got ", value, ".");
}

template <class Options>
void check_moments(const std::string& owner, const Options& options) {
  check_not_negative(owner, "lr", options.lr());
  check_not_negative(owner, "eps", options.eps());
  check_not_negative(owner, "weight_decay", options.weight_decay());
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, owner, ": betas must be in [0, 1), got (", beta1, ", ",
                    beta2, ").");
}

template <class Options>
void check_no_amsgrad(const std::string& owner, const Options& options) {
  TORCH_CHECK(!options.amsgrad(), owner, " does not support the AMSGrad variant: leave amsgrad false.");
}

/// The rules of a class whose options are `Options`, with values that `check` lets through.
template <class Options, void (*check)(const std::string&, const Options&)>
OptionsRules options_rules(const char* optimizer) {
  using torch::optim::OptimizerOptions;
  return {optimizer, [](const OptimizerOptions& options) { return dynamic_cast<const Options*>(&options) != nullptr; },
          [](const std::string& owner, const OptimizerOptions& options) { check(owner, static_cast<const Options&>(options)); },
          [](OptimizerOptions& to, const OptimizerOptions& from) {
            static_cast<Options&>(to) = static_cast<const Options&>(from);
          }};
}

// The options of a group as their own class, which a step has looked at.
template <class Options>
const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

}  // namespace apex::optimizers::detail

// Where a kernel reads the tensors of a control: on the device of what it updates. For the source files of the optimizers.
namespace apex::optimizers::detail {

/// The tensor on `device`, or an undefined one. The host waits only for what it is to read itself, on the CPU.
inline at::Tensor moved_to(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/!device.is_cpu()) : tensor;
}

/// Moves what every update reads.
inline void place_control(c10::Device device, kernels::StepControl& control) {
  for (at::Tensor* tensor : {&control.found_inf, &control.grad_scale_tensor, &control.lr_tensor}) {
    *tensor = moved_to(device, *tensor);
  }
}

/// Whether a kernel on `device` can advance this count of steps itself. An undefined one is the host's.
inline bool can_count(c10::Device device, const at::Tensor& step_tensor) {
  return !step_tensor.defined() || step_tensor.device() == device;
}

/// The same, and the count: itself for the kernel that is to advance it, else a copy.
inline void place_control(c10::Device device, bool counts, kernels::MomentControl& control) {
  place_control(device, control);
  if (counts || !control.step_tensor.defined()) return;
  control.step_tensor = control.step_tensor.to(device, /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
}

}  // namespace apex::optimizers::detail

// For source files.
namespace apex::optimizers::detail {

/// What a file has for an optimizer, read apart from it: where that fails, the optimizer is as it was.
class ReadOptimizer final : public torch::optim::Optimizer {
 public:
  ReadOptimizer() : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), nullptr) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

/// Errors: RuntimeError for a file of another class, or of an optimizer over other groups.
template <class State, class Options>
ReadOptimizer read_as_saved(torch::serialize::InputArchive& archive,
                            const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  ReadOptimizer read;
  for (const auto& group : groups) read.param_groups().emplace_back(group.params(), std::make_unique<Options>(0));
  torch::optim::serialize<State, Options>(archive, read);
  return read;
}

/// The same, with states that fit their parameters. Errors: as `read_as_saved`, and RuntimeError naming a parameter whose state
/// has another shape.
template <class State, class Options>
ReadOptimizer read_optimizer(torch::serialize::InputArchive& archive,
                             const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  ReadOptimizer read = read_as_saved<State, Options>(archive, groups);
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto& params = groups[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const auto state = read.state().find(params[i].unsafeGetTensorImpl());
      if (state != read.state().end()) static_cast<State&>(*state->second).fit_to(params[i], name_of(group, i, params[i]));
    }
  }
  return read;
}

}  // namespace apex::optimizers::detail

// What FusedLAMB and FusedMixedPrecisionLamb share.
namespace apex::optimizers::detail {

/// The L2 norm of all gradients of all sets after `grad_scale`, and its device factor if there is one: float32, one element, on
/// the first gradient's device. Undefined if there is no gradient.
at::Tensor global_grad_norm(const std::vector<std::vector<LaunchSet>>& sets_by_group, const kernels::StepControl& scaling);

template <class Options>
kernels::LambControl lamb_control(const Options& options) {
  kernels::LambControl control;
  control.lr = options.lr();
  control.weight_decay = options.weight_decay();
  std::tie(control.beta1, control.beta2) = options.betas();
  control.eps = options.eps();
  control.bias_correction = options.bias_correction();
  control.adam_w_mode = options.adam_w_mode();
  control.grad_averaging = options.grad_averaging();
  control.use_nvlamb = options.use_nvlamb();
  return control;
}

/// The state's tensors that a stage works on, matched by index.
struct LambState {
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, updates;
};

/// Both stages for one set.
void lamb_step(const LaunchSet& set, const LambState& state, kernels::LambControl control);

}  // namespace apex::optimizers::detail
