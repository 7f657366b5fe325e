#pragma once

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>
#include <apex_cpp/optimizers/stepped_param.h>
#include "kernels/moved_to.h"
#include "kernels/optimizers.h"

#include <torch/optim/serialize.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

namespace apex::optimizers::detail {

/// The kernel's settings for a group's options.
kernels::AdamSettings adam_settings(const FusedAdamOptions& options);

// What all fused optimizer classes share. For their source files.

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make_amp_handle(Opt& optimizer, const std::shared_ptr<amp::detail::Session>& session) {
  return std::make_unique<amp::AmpOptimizer<Opt>>(std::move(optimizer), session);
}

inline void check_not_negative(const OptionsOwner& owner, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0, owner, ": ", name, " must not be negative, got ", value, ".");
}

inline void check_lr(const OptionsOwner& owner, double lr) {
  if (owner.checks_lr) check_not_negative(owner, "lr", lr);
}

inline void check_betas(const OptionsOwner& owner, const Betas& betas) {
  const auto [beta1, beta2] = betas;
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, owner, ": betas must be in [0, 1), got (", beta1, ", ",
                    beta2, ").");
}

template <class Options>
void check_moments(const OptionsOwner& owner, const Options& options) {
  check_lr(owner, options.lr());
  check_not_negative(owner, "eps", options.eps());
  check_not_negative(owner, "weight_decay", options.weight_decay());
  check_betas(owner, options.betas());
}

template <class Options>
void check_no_amsgrad(const OptionsOwner& owner, const Options& options) {
  TORCH_CHECK(!options.amsgrad(), owner, " does not support the AMSGrad variant: leave amsgrad false.");
}

/// Of classes whose kernels do not round at random.
template <class Options>
void check_rounds_to_nearest(const OptionsOwner& owner, const Options& options) {
  TORCH_CHECK_VALUE(options.master_storage() != MasterStorage::stochastic, owner,
                    " does not support master_storage stochastic: take remainder16, or FusedAdam.");
}

/// Of classes without remainders.
template <class Options>
void check_float32_masters(const OptionsOwner& owner, const Options& options) {
  TORCH_CHECK_VALUE(options.master_storage() == MasterStorage::float32, owner, " does not support master_storage ",
                    name_of(options.master_storage()), ": leave it float32, or take FusedLAMB or FusedAdam.");
}

/// The options rules of an optimizer class. `check` throws for values that the class does not allow.
template <class Options, class State, void (*check)(const OptionsOwner&, const Options&)>
OptionsRules options_rules(const char* optimizer) {
  using torch::optim::OptimizerOptions;
  return {
      optimizer,
      &typeid(State),
      [](const torch::optim::OptimizerParamState& state) { return dynamic_cast<const State*>(&state) != nullptr; },
      [](const OptimizerOptions& options) { return dynamic_cast<const Options*>(&options) != nullptr; },
      [](const OptionsOwner& owner, const OptimizerOptions& options) { check(owner, static_cast<const Options&>(options)); },
      [](OptimizerOptions& to, const OptimizerOptions& from) {
        static_cast<Options&>(to).assign_saved(static_cast<const Options&>(from));
      }};
}

// The options of a group as their own class. The step has checked the class.
template <class Options>
const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

// Moves step tensors to the device of the updated parameters, where the kernel reads them.

/// Whether a kernel on `device` can advance the step count itself. The host advances an undefined one.
inline bool can_count(c10::Device device, const at::Tensor& step) { return !step.defined() || step.device() == device; }

/// The tensors on `device`. A kernel that `counts` gets the step count itself; another gets a copy to advance.
inline kernels::StepTensors placed_on(c10::Device device, const kernels::StepTensors& tensors, bool counts = true) {
  kernels::StepTensors result = tensors;
  for (at::Tensor* tensor : {&result.found_inf, &result.grad_scale, &result.lr}) *tensor = kernels::moved_to(device, *tensor);
  if (counts || !tensors.step.defined()) return result;
  result.step = tensors.step.to(device, /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
  return result;
}

// Loading. For the source files of the optimizers.

/// Holds what is read from an archive. If reading fails, the optimizer that loads is unchanged.
class ReadOptimizer final : public torch::optim::Optimizer {
 public:
  ReadOptimizer() : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), nullptr) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

/// In the archive of an optimizer that leaves its states to rank 0's archive: the rank that wrote it.
constexpr const char* kWithoutStatesKey = "without_states_on_rank";

inline void mark_without_states(torch::serialize::OutputArchive& archive, int64_t rank) {
  archive.write(kWithoutStatesKey, c10::IValue(rank));
}

inline void check_has_states(torch::serialize::InputArchive& archive) {
  c10::IValue rank;
  const bool is_marked = archive.try_read(kWithoutStatesKey, rank);
  TORCH_CHECK(
      !is_marked, "This archive was saved on rank ", rank.toInt(),
      " of a sharded optimizer, and has no states: rank 0's archive has those of all ranks. Load the archive of rank 0 on "
      "every rank.");
}

/// Calls `call(state, param, group, position)` for each parameter of the groups that has a state in `read`.
template <class State, class Call>
void for_each_state(torch::optim::Optimizer& read, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const Call& call) {
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto& params = groups[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const auto state = read.state().find(params[i].unsafeGetTensorImpl());
      if (state != read.state().end()) call(static_cast<State&>(*state->second), params[i], group, i);
    }
  }
}

/// Reads options and states from an archive. Errors: RuntimeError if another class saved it, an optimizer with other groups, or
/// a rank whose states are in another archive.
template <class State, class Options>
ReadOptimizer read_as_saved(torch::serialize::InputArchive& archive,
                            const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  check_has_states(archive);
  ReadOptimizer read;
  for (const auto& group : groups) read.param_groups().emplace_back(group.params(), std::make_unique<Options>(0));
  torch::optim::serialize<State, Options>(archive, read);
  return read;
}

/// The same, and fits the states to their parameters and to the storage of masters. Errors: as `read_as_saved`, and
/// RuntimeError naming a parameter whose saved state has another shape.
template <class State, class Options>
ReadOptimizer read_optimizer(torch::serialize::InputArchive& archive,
                             const std::vector<torch::optim::OptimizerParamGroup>& groups,
                             MasterStorage storage = MasterStorage::float32) {
  ReadOptimizer read = read_as_saved<State, Options>(archive, groups);
  for_each_state<State>(read, groups, [&](State& state, const at::Tensor& param, size_t group, size_t i) {
    state.fit_to(param, name_of(group, i, param), storage);
  });
  return read;
}

/// Both factors of gradients, grad_scale of the settings and of the tensors: float32, one element, on `device`.
at::Tensor grad_factor(c10::Device device, const kernels::StepSettings& settings, const kernels::StepTensors& tensors);

// What FusedLAMB and FusedMixedPrecisionLamb share.

/// The L2 norm of all gradients of all sets, multiplied by both grad_scales: float32, one element, on the first gradient's
/// device. Undefined if there is no gradient.
at::Tensor global_grad_norm(const std::vector<std::vector<LaunchSet>>& sets_by_group, const kernels::StepSettings& settings,
                            const kernels::StepTensors& tensors);

/// The settings that all rules with running moments share, from the options of a group.
template <class Settings, class Options>
Settings moment_settings(const Options& options) {
  Settings settings;
  settings.lr = options.lr();
  settings.weight_decay = options.weight_decay();
  std::tie(settings.beta1, settings.beta2) = options.betas();
  settings.eps = options.eps();
  settings.bias_correction = options.bias_correction();
  return settings;
}

template <class Options>
kernels::LambSettings lamb_settings(const Options& options, double max_grad_norm) {
  auto settings = moment_settings<kernels::LambSettings>(options);
  settings.adam_w_mode = options.adam_w_mode();
  settings.grad_averaging = options.grad_averaging();
  settings.use_nvlamb = options.use_nvlamb();
  settings.max_grad_norm = max_grad_norm;
  return settings;
}

/// The state of a set's parameters, matched by index. Parameters with remainders have no updates.
struct LambState {
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, updates;
};

/// Both stages for one set. Calls `after_first` between them, where there are two calls of kernels.
void lamb_step(const LaunchSet& set, const LambState& state, const at::Tensor& global_norm,
               const kernels::LambSettings& settings, const kernels::StepTensors& tensors,
               const std::function<void()>& after_first);

}  // namespace apex::optimizers::detail
