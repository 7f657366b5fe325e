#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

#include <vector>

namespace apex::optimizers {

/// Options of FusedScheduleFreeAdamW, with the names and defaults of AdamWScheduleFree. Groups may have their own values,
/// except for set_grad_none and materialize_master_grads, which apply to the whole optimizer.
struct FusedScheduleFreeAdamWOptions : FusedOptions<FusedScheduleFreeAdamWOptions> {
  /* implicit */ FusedScheduleFreeAdamWOptions(double lr = 0.0025) : lr_(lr) {}
  TORCH_ARG(double, lr) = 0.0025;
  /// The share of the average x in the parameters during training, above 0, and the decay of the mean of squared gradients. Do
  /// not change the first one during training: x is computed with it.
  TORCH_ARG(Betas, betas) = Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  /// Added to the step, at the parameters during training.
  TORCH_ARG(double, weight_decay) = 0;
  /// The rate rises in a line to lr within this number of steps.
  TORCH_ARG(int64_t, warmup_steps) = 0;
  /// Step t weighs t^r in the average.
  TORCH_ARG(double, r) = 0;
  /// A step weighs the largest rate so far, to this power, in the average.
  TORCH_ARG(double, weight_lr_power) = 2;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {"lr",
                                           "betas",
                                           "eps",
                                           "weight_decay",
                                           "warmup_steps",
                                           "r",
                                           "weight_lr_power",
                                           "set_grad_none",
                                           "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.betas_, self.eps_, self.weight_decay_, self.warmup_steps_, self.r_, self.weight_lr_power_,
                    self.set_grad_none_, self.materialize_master_grads_);
  }
};

struct FusedScheduleFreeAdamWParamState : FusedParamState<FusedScheduleFreeAdamWParamState> {
  /// Of the parameter's shape, float32: what the steps move, and the running mean of squared gradients.
  at::Tensor z, exp_avg_sq;

  static constexpr bool kHasDtypeOfParam = false;
  static constexpr const char* kNames[] = {"z", "exp_avg_sq"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.z, self.exp_avg_sq);
  }
};

/// Schedule-free AdamW (Defazio et al., arXiv:2405.15682), for training without a schedule of learning rates. The parameters
/// are y in training mode, where gradients are taken, and x in eval mode, the average of what the steps move. A program calls
/// `train()` before it trains, and `eval()` before it evaluates or exports the model:
///
///   opt.train();
///   for (...) { ...; opt.step(); }
///   opt.eval();
///
/// Both are one pass over memory, and also write the copies in the model where there are masters. A program may save the
/// optimizer in either mode; `load` restores the mode, as the model has the weights of this mode. A new optimizer is in eval
/// mode. The modes are the optimizer's; the model has its own `train()` and `eval()`.
///
/// What batch norm collects in training belongs to y. As the reference says, let it see some batches in eval mode of the
/// optimizer and training mode of the model before an evaluation.
///
/// The sums behind the weights of the average are on the host: with `amp::GradScaler` on a GPU the host waits for found_inf,
/// and a step cannot be captured in a CUDA graph. Training at a level without masters loses bits of 16-bit parameters when the
/// mode changes.
///
/// Errors: ValueError for a negative lr, eps, weight_decay, warmup_steps or r, and for betas that are not in [0, 1) or begin
/// with 0; RuntimeError for a step in eval mode, before its closure runs. Source: AdamWScheduleFree of
/// github.com/facebookresearch/schedule_free, with the same formula. There the state has the parameter's dtype, a step changes
/// gradients, and each group has a mode.
class FusedScheduleFreeAdamW : public FusedOptimizer {
 public:
  explicit FusedScheduleFreeAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                  FusedScheduleFreeAdamWOptions defaults = {});
  explicit FusedScheduleFreeAdamW(std::vector<at::Tensor> params, FusedScheduleFreeAdamWOptions defaults = {})
      : FusedScheduleFreeAdamW({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  /// Makes the parameters y, or x. Nothing happens in a mode that the optimizer is in. No synchronisation. Values that the
  /// program wrote into a model with masters first go into the masters. Errors, before anything is changed: RuntimeError for an
  /// optimizer that `amp::initialize` was given: call it on the handle; ValueError for options that a step would not take.
  void train() { set_training(true); }
  void eval() { set_training(false); }
  bool is_training() const { return is_training_; }
  bool changes_params_between_steps() const override { return true; }

  torch::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedScheduleFreeAdamW); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;

 private:
  void set_training(bool training);
  void move_params(bool to_y);
  void update_group(size_t group, const std::vector<detail::LaunchSet>& sets);

  bool is_training_ = false;
};

FusedScheduleFreeAdamWOptions options_of(const FusedScheduleFreeAdamW*);

}  // namespace apex::optimizers
