#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedLARS, with the names and defaults of Apex on ROCm. Groups may have their own values, except for
/// set_grad_none and materialize_master_grads, which apply to the whole optimizer. Apex also takes dampening and
/// wd_after_momentum, which have no effect there.
struct FusedLARSOptions : FusedOptions<FusedLARSOptions> {
  /* implicit */ FusedLARSOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0;
  /// Added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, trust_coefficient) = 0.001;
  TORCH_ARG(double, eps) = 0;
  TORCH_ARG(bool, nesterov) = false;
  /// The rate is lr itself, whatever the norms: for a group of biases and of norm layers' weights.
  TORCH_ARG(bool, is_skipped) = false;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = false;

 public:
  static constexpr const char* kNames[] = {"lr",           "momentum", "weight_decay", "trust_coefficient",
                                           "eps",          "nesterov", "is_skipped",   "materialize_master_grads",
                                           "set_grad_none"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.momentum_, self.weight_decay_, self.trust_coefficient_, self.eps_, self.nesterov_,
                    self.is_skipped_, self.materialize_master_grads_, self.set_grad_none_);
  }
};

struct FusedLARSParamState : FusedParamState<FusedLARSParamState> {
  /// The sum of changes that momentum carries on, of the parameter's shape and dtype; zeros before the first step.
  at::Tensor momentum_buffer;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"momentum_buffer"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.momentum_buffer);
  }
};

/// LARS: SGD with momentum, in which each parameter has the rate
///   lr * trust_coefficient * |param| / (|grad| + weight_decay * |param| + eps)
/// or lr if one of its norms is 0 (You, Gitman and Ginsburg, arXiv:1708.03888). As in Apex, the rate is part of the buffer:
/// a later change of lr does not scale what the buffer holds.
/// A step makes two passes over memory on each device: one for the norms, and the update. With is_skipped it makes one.
/// Errors: ValueError for a negative lr, momentum, weight_decay, trust_coefficient or eps, and for nesterov without momentum.
/// Apex on ROCm: apex.optimizers.FusedLARS. With materialize_master_grads(false) its kernel ignores the loss scale; here
/// gradients are unscaled. It takes eps of the optimizer, not of the group.
class FusedLARS : public FusedOptimizer {
 public:
  explicit FusedLARS(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLARSOptions defaults);
  explicit FusedLARS(std::vector<at::Tensor> params, FusedLARSOptions defaults)
      : FusedLARS({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedLARS); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
};

FusedLARSOptions options_of(const FusedLARS*);

}  // namespace apex::optimizers
