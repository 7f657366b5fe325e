#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedNovoGrad, with Apex's names and defaults. Groups may have their own values, except for set_grad_none and
/// materialize_master_grads, which apply to the whole optimizer.
struct FusedNovoGradOptions : FusedOptions<FusedNovoGradOptions> {
  /* implicit */ FusedNovoGradOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(Betas, betas) = Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  /// Not supported: true is an error.
  TORCH_ARG(bool, amsgrad) = false;
  /// Divides gradients by their norm and adds weight decay before the running mean instead of after it.
  TORCH_ARG(bool, reg_inside_moment) = false;
  /// Weights a gradient by 1 - beta1 in its running mean, instead of by 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// 2: L2 norms; 0: largest magnitudes. Other values are an error at the first step, as in Apex.
  TORCH_ARG(int64_t, norm_type) = 2;
  /// Starts running norms at zero instead of the first gradient's norm.
  TORCH_ARG(bool, init_zero) = false;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {"lr",
                                           "bias_correction",
                                           "betas",
                                           "eps",
                                           "weight_decay",
                                           "amsgrad",
                                           "reg_inside_moment",
                                           "grad_averaging",
                                           "norm_type",
                                           "init_zero",
                                           "set_grad_none",
                                           "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.bias_correction_, self.betas_, self.eps_, self.weight_decay_, self.amsgrad_,
                    self.reg_inside_moment_, self.grad_averaging_, self.norm_type_, self.init_zero_, self.set_grad_none_,
                    self.materialize_master_grads_);
  }
};

struct FusedNovoGradParamState : FusedParamState<FusedNovoGradParamState> {
  /// Of the parameter's shape and dtype.
  at::Tensor exp_avg;

  /// The running norm: an element of the group's tensor, which is saved with the group. Undefined before the parameter's first
  /// step.
  at::Tensor norm;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"exp_avg"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.exp_avg);
  }
};

/// NovoGrad (Ginsburg et al., arXiv:1905.11286): gradients are divided by a running norm of their tensor.
/// Works at O2, where Apex fails. The set of parameters with a gradient may change from step to step.
/// Errors: RuntimeError for amsgrad; ValueError for a negative lr, eps or weight_decay and betas outside [0, 1); RuntimeError
/// at the first step for a norm_type other than 0 and 2. Apex: apex.optimizers.FusedNovoGrad.
class FusedNovoGrad : public FusedOptimizer {
 public:
  explicit FusedNovoGrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedNovoGradOptions defaults = {});
  explicit FusedNovoGrad(std::vector<at::Tensor> params, FusedNovoGradOptions defaults = {})
      : FusedNovoGrad({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  /// The running norm of each parameter of a group by position (Apex: `group["exp_avg_sq"]`), float32 on the parameters'
  /// device. Undefined before the group's first step; 0 for parameters without a step so far.
  at::Tensor exp_avg_sq(size_t group = 0) const;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedNovoGrad); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  void check_group(size_t group) const override;
  at::Tensor norms_by_position(size_t group) const override;
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;

 private:
  void update_group(size_t group, const std::vector<detail::LaunchSet>& sets);
  /// The norm of a parameter; undefined if it has none yet.
  at::Tensor norm_of(const at::Tensor& param) const;
  /// Whether each parameter's norm is the element of `norms` at the parameter's position.
  bool match_positions(size_t group, const at::Tensor& norms) const;
  /// A tensor with a copy of each parameter's norm at its position; 0 for parameters without a norm.
  at::Tensor gathered_norms(size_t group) const;
  /// Makes the norms in the parameters' states elements of `norms`.
  void assign_norms(size_t group, const at::Tensor& norms);
  const at::Tensor& norms_of(size_t group);
};

FusedNovoGradOptions options_of(const FusedNovoGrad*);

}  // namespace apex::optimizers
