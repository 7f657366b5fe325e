#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedSGD, with Apex's names and defaults. Groups may have their own values, except for set_grad_none and
/// materialize_master_grads, which apply to the whole optimizer.
struct FusedSGDOptions : FusedOptions<FusedSGDOptions> {
  /* implicit */ FusedSGDOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;
  /// Adds weight decay after momentum, not to the gradient.
  TORCH_ARG(bool, wd_after_momentum) = false;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = false;

 public:
  static constexpr const char* kNames[] = {
      "lr",           "momentum", "dampening", "weight_decay", "nesterov", "wd_after_momentum", "materialize_master_grads",
      "set_grad_none"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.momentum_, self.dampening_, self.weight_decay_, self.nesterov_, self.wd_after_momentum_,
                    self.materialize_master_grads_, self.set_grad_none_);
  }
};

struct FusedSGDParamState : FusedParamState<FusedSGDParamState> {
  /// Of the parameter's shape and dtype; zeros before the first step, and without momentum.
  at::Tensor momentum_buffer;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"momentum_buffer"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.momentum_buffer);
  }
};

/// Stochastic gradient descent with momentum, Nesterov or not (Sutskever et al., ICML 2013, in PyTorch's form).
/// The momentum of a parameter starts with its first gradient, even if others have started before. (Apex confuses such
/// parameters, FOPT-09.)
/// Errors: ValueError for a negative lr, momentum or weight_decay, and for nesterov without momentum or with dampening.
/// Apex: apex.optimizers.FusedSGD.
class FusedSGD : public FusedOptimizer {
 public:
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedSGDOptions defaults);
  explicit FusedSGD(std::vector<at::Tensor> params, FusedSGDOptions defaults)
      : FusedSGD({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedSGD); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
};

FusedSGDOptions options_of(const FusedSGD*);

}  // namespace apex::optimizers
