#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedMixedPrecisionLamb, with Apex's names and defaults. Groups may have their own values, except for
/// max_grad_norm, reduced_precision_dtype, set_grad_none and materialize_master_grads, which apply to the whole optimizer.
struct FusedMixedPrecisionLambOptions : FusedOptions<FusedMixedPrecisionLambOptions> {
  /* implicit */ FusedMixedPrecisionLambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  /// The step count that a group starts with.
  TORCH_ARG(int64_t, step) = 0;
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
  /// The largest norm of all gradients together: gradients with a larger norm are scaled down to it. 0 or less disables
  /// clipping; Apex divides by 0 there, so that all gradients become 0.
  TORCH_ARG(double, max_grad_norm) = 1.0;
  /// Applies the trust ratio to parameters without weight decay too.
  TORCH_ARG(bool, use_nvlamb) = false;
  /// Updates parameters of this dtype, float16 or bfloat16, in float32 masters that the optimizer keeps. As in Apex, a step
  /// overwrites the parameters with the rounded masters, also where the program has written or loaded them since the last step,
  /// other than with amp's functions.
  TORCH_ARG(std::optional<at::ScalarType>, reduced_precision_dtype) = std::nullopt;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {"lr",
                                           "step",
                                           "bias_correction",
                                           "betas",
                                           "eps",
                                           "weight_decay",
                                           "amsgrad",
                                           "adam_w_mode",
                                           "grad_averaging",
                                           "max_grad_norm",
                                           "use_nvlamb",
                                           "reduced_precision_dtype",
                                           "set_grad_none",
                                           "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.step_, self.bias_correction_, self.betas_, self.eps_, self.weight_decay_, self.amsgrad_,
                    self.adam_w_mode_, self.grad_averaging_, self.max_grad_norm_, self.use_nvlamb_,
                    self.reduced_precision_dtype_, self.set_grad_none_, self.materialize_master_grads_);
  }
};

struct FusedMixedPrecisionLambParamState : FusedParamState<FusedMixedPrecisionLambParamState> {
  /// float32, of the parameter's shape.
  at::Tensor exp_avg, exp_avg_sq;
  /// The float32 master of a parameter of reduced precision.
  at::Tensor master_param;
  /// The update between the two stages, float32. Not saved.
  at::Tensor update;

  static constexpr bool kHasDtypeOfParam = false;
  static constexpr const char* kNames[] = {"exp_avg", "exp_avg_sq", "master_param"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.exp_avg, self.exp_avg_sq, self.master_param);
  }
};

/// LAMB for 16-bit parameters with float32 masters. Learning rate and step count are on the device, so that a CUDA graph can
/// capture a step. Gradients are not changed. State stays float32, whatever dtype is loaded.
/// Errors: RuntimeError for amsgrad, for a reduced_precision_dtype that is not 16-bit, and, at a step, for a group that mixes
/// dtypes; ValueError for a negative lr, eps or weight_decay and betas outside [0, 1).
/// Apex: apex.optimizers.FusedMixedPrecisionLamb.
class FusedMixedPrecisionLamb : public FusedOptimizer {
 public:
  explicit FusedMixedPrecisionLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                   FusedMixedPrecisionLambOptions defaults = {});
  explicit FusedMixedPrecisionLamb(std::vector<at::Tensor> params, FusedMixedPrecisionLambOptions defaults = {})
      : FusedMixedPrecisionLamb({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  /// Writes the groups' learning rates to the device, where steps of a CUDA graph read them. `step` does so itself; call it
  /// between replays after a scheduler has changed a rate. No synchronisation.
  void update_device_lr();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedMixedPrecisionLamb); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  void check_group(size_t group) const override;
  int64_t steps_at_start(size_t group) const override;
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
  at::Tensor* own_master(const at::Tensor& param) override;

 private:
  void update_group(size_t group, std::vector<detail::LaunchSet>& sets, const at::Tensor& global_norm);

  double max_grad_norm_;
  std::optional<at::ScalarType> reduced_precision_dtype_;
};

FusedMixedPrecisionLambOptions options_of(const FusedMixedPrecisionLamb*);

}  // namespace apex::optimizers
