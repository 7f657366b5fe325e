#pragma once

#include <torch/arg.h>

#include <utility>

#include <apex_cpp/optimizers/detail/coded_moment.h>
#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// How FusedAdam stores its two moments.
enum class MomentStorage {
  /// 4 bytes each.
  float32,
  /// 2 bytes each. Steps round them at random, and so lose nothing on average; rounded to nearest, a mean of squares would not
  /// follow gradients that become smaller. The random numbers depend on the step and the value alone.
  bfloat16,
  /// 1 byte each, and 1 byte for the scale of 32 elements: 8.25 bits. Steps round them at random, by numbers that depend on the
  /// step, the parameter's position and the element alone.
  /// Source: FlashOptim (arXiv:2602.23349); what differs from it is in kernels/rules/quantized.h, as are the bits of a
  /// code and of a scale.
  int8,
};

/// "float32", "bfloat16" or "int8", and back. Errors: ValueError for another name.
const char* name_of(MomentStorage storage);
MomentStorage moment_storage_named(const std::string& name);

/// Options of FusedAdam, with Apex's names and defaults. Groups may have their own values, except for set_grad_none,
/// capturable, master_weights, materialize_master_grads, master_storage and moment_storage, which apply to the whole optimizer.
struct FusedAdamOptions : FusedOptions<FusedAdamOptions> {
  /* implicit */ FusedAdamOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(Betas, betas) = Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  /// Adds weight decay to the step (AdamW) instead of the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  TORCH_ARG(double, weight_decay) = 0;
  /// Not supported: true is an error.
  TORCH_ARG(bool, amsgrad) = false;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// Keeps learning rate and step count on the device, for steps in a CUDA graph.
  TORCH_ARG(bool, capturable) = false;
  /// Keeps float32 masters of 16-bit parameters in the optimizer, without amp. Needs capturable. As in Apex, a step overwrites
  /// the parameters with the rounded masters, also where the program has written or loaded them since the last step. A load
  /// with amp's functions is kept after `amp::initialize` or, without it, if the function is given this optimizer, too.
  TORCH_ARG(bool, master_weights) = false;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;
  /// Not saved, as master_storage: files hold float32 moments, and can be loaded with another storage.
  TORCH_ARG(MomentStorage, moment_storage) = MomentStorage::float32;

 public:
  static constexpr const char* kNames[] = {"lr",
                                           "bias_correction",
                                           "betas",
                                           "eps",
                                           "adam_w_mode",
                                           "weight_decay",
                                           "amsgrad",
                                           "set_grad_none",
                                           "capturable",
                                           "master_weights",
                                           "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.bias_correction_, self.betas_, self.eps_, self.adam_w_mode_, self.weight_decay_,
                    self.amsgrad_, self.set_grad_none_, self.capturable_, self.master_weights_, self.materialize_master_grads_);
  }
};

struct FusedAdamParamState : FusedParamState<FusedAdamParamState> {
  /// Of the parameter's shape, float32, or bfloat16 with this moment_storage; undefined with int8.
  at::Tensor exp_avg, exp_avg_sq;
  /// With moment_storage int8.
  detail::CodedMoment exp_avg_codes, exp_avg_sq_codes;
  /// The float32 master, with master_weights.
  at::Tensor master_param;

  static constexpr bool kHasDtypeOfParam = false;
  static constexpr const char* kNames[] = {"exp_avg", "exp_avg_sq", "master_param"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.exp_avg, self.exp_avg_sq, self.master_param);
  }

  using FusedParamState::serialize;
  /// Writes float32 moments.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  void check_shapes(const detail::SteppedParam& of) const override;
  /// Turns a loaded float32 master into the remainder, if the state has both. `param`: the bfloat16 parameter.
  void keep_master_as_remainder(const at::Tensor& param);
  /// Both moments as float32.
  std::pair<at::Tensor, at::Tensor> float32_moments() const;
  /// Converts float32 moments to `dtype`; uint8 stands for codes.
  void store_moments(at::ScalarType dtype);
};

/// Adam (Kingma and Ba, arXiv:1412.6980), or with adam_w_mode AdamW (Loshchilov and Hutter, arXiv:1711.05101).
/// Errors: RuntimeError for amsgrad, and for master_weights without capturable; ValueError for a negative lr, eps or
/// weight_decay and betas outside [0, 1). Apex: apex.optimizers.FusedAdam.
class FusedAdam : public FusedOptimizer {
 public:
  explicit FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults = {});
  explicit FusedAdam(std::vector<at::Tensor> params, FusedAdamOptions defaults = {})
      : FusedAdam({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  /// Writes the groups' learning rates to the device, where steps of a CUDA graph read them. `step` does so itself; call it
  /// between replays after a scheduler has changed a rate. No synchronisation. Does nothing unless capturable.
  void update_device_lr();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedAdam); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
  at::Tensor* own_master(const at::Tensor& param) override;
  /// Both moments as the kernel takes them, created with zeros if there are none.
  std::pair<at::Tensor, at::Tensor> moments_of(const at::Tensor& param, FusedAdamParamState& state) const;

  kernels::rules::AdamSettings settings_of(size_t group) const;

  /// uint8 stands for codes.
  at::ScalarType moment_dtype_;

 private:
  bool may_own_master(const at::Tensor& param) const { return master_weights_ && !keeps_masters_of(param.scalar_type()); }
  void use_own_masters(detail::LaunchSet& set);

  bool master_weights_;
};

FusedAdamOptions options_of(const FusedAdam*);

}  // namespace apex::optimizers
