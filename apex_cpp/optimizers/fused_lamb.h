#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedLAMB, with Apex's names and defaults. Groups may have their own values, except for max_grad_norm,
/// set_grad_none and materialize_master_grads, which apply to the whole optimizer (FOPT-08).
struct FusedLAMBOptions : FusedOptions<FusedLAMBOptions> {
  /* implicit */ FusedLAMBOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(Betas, betas) = Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  /// Not supported: true is an error.
  TORCH_ARG(bool, amsgrad) = false;
  /// Adds weight decay to the update instead of the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  /// Weights a gradient by 1 - beta1 in its running mean, instead of by 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// The largest norm of all gradients together: gradients with a larger norm are scaled down to it. 0 or less disables
  /// clipping; Apex divides by 0 there, so that all gradients become 0.
  TORCH_ARG(double, max_grad_norm) = 1.0;
  /// Applies the trust ratio to parameters without weight decay too.
  TORCH_ARG(bool, use_nvlamb) = false;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {
      "lr",          "bias_correction", "betas",         "eps",           "weight_decay", "amsgrad",
      "adam_w_mode", "grad_averaging",  "set_grad_none", "max_grad_norm", "use_nvlamb",   "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.bias_correction_, self.betas_, self.eps_, self.weight_decay_, self.amsgrad_,
                    self.adam_w_mode_, self.grad_averaging_, self.set_grad_none_, self.max_grad_norm_, self.use_nvlamb_,
                    self.materialize_master_grads_);
  }
};

struct FusedLAMBParamState : FusedParamState<FusedLAMBParamState> {
  /// Of the parameter's shape and dtype.
  at::Tensor exp_avg, exp_avg_sq;
  /// The update between the two stages, if the gradient's memory cannot hold it and there is no remainder. Not saved.
  at::Tensor update;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"exp_avg", "exp_avg_sq"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.exp_avg, self.exp_avg_sq);
  }
};

/// LAMB (You et al., arXiv:1904.00962), in NVIDIA's form: gradients are clipped by their global norm over all groups.
/// As in Apex, the update overwrites a gradient that has its parameter's dtype. It leaves other gradients unchanged, and all
/// gradients if amp unscales them within the step (the fused order). Of a parameter with a remainder the second stage computes
/// the update again from the moments, so that it takes no memory and leaves the gradient unchanged.
/// Errors: RuntimeError for amsgrad; ValueError for a negative lr, eps or weight_decay and betas outside [0, 1).
/// Apex: apex.optimizers.FusedLAMB.
class FusedLAMB : public FusedOptimizer {
 public:
  explicit FusedLAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLAMBOptions defaults = {});
  explicit FusedLAMB(std::vector<at::Tensor> params, FusedLAMBOptions defaults = {})
      : FusedLAMB({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedLAMB); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;

 private:
  /// What holds an update between the two stages.
  enum class UpdateIn { grad, state, nothing };
  UpdateIn update_in(const at::Tensor& param, const at::Tensor& grad) const;
  void update_group(size_t group, const std::vector<detail::LaunchSet>& sets, const at::Tensor& global_norm);

  double max_grad_norm_;
};

FusedLAMBOptions options_of(const FusedLAMB*);

}  // namespace apex::optimizers
