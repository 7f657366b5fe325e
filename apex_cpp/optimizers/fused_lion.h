#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedLion, with the paper's names and defaults. Groups may have their own values, except for set_grad_none and
/// materialize_master_grads, which apply to the whole optimizer. A step changes each element by `lr`, and by weight decay. The
/// paper uses rates 3 to 10 times smaller than for AdamW, and a weight decay as much larger.
struct FusedLionOptions : FusedOptions<FusedLionOptions> {
  /* implicit */ FusedLionOptions(double lr = 1e-4) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-4;
  /// The share of the running mean in a step's direction, and the share of the mean that a step keeps.
  TORCH_ARG(Betas, betas) = Betas(0.9, 0.99);
  /// Added to the step, not to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {"lr", "betas", "weight_decay", "set_grad_none", "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.betas_, self.weight_decay_, self.set_grad_none_, self.materialize_master_grads_);
  }
};

struct FusedLionParamState : FusedParamState<FusedLionParamState> {
  /// The running mean of the gradients, of the parameter's shape and dtype.
  at::Tensor exp_avg;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"exp_avg"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.exp_avg);
  }
};

/// Lion: a step is the sign of a mix of gradient and running mean (Chen et al., arXiv:2302.06675). An element with a mix of
/// zero changes by weight decay alone; one with a NaN becomes NaN. Errors: ValueError for a negative lr or weight_decay, and
/// for betas that are not in [0, 1). Apex has no Lion.
class FusedLion : public FusedOptimizer {
 public:
  explicit FusedLion(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLionOptions defaults = {});
  explicit FusedLion(std::vector<at::Tensor> params, FusedLionOptions defaults = {})
      : FusedLion({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedLion); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
};

FusedLionOptions options_of(const FusedLion*);

}  // namespace apex::optimizers
