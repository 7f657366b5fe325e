#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/fp16_utils/param_lists.h>

namespace apex::fp16_utils {

/// Arguments of a dynamic loss scale, with Apex's names and defaults.
struct DynamicLossArgs {
  TORCH_ARG(double, init_scale) = amp::LossScaler::kInitScale;
  /// Must be 2. Apex always uses 2, whatever the value (SCALE-02); here another value is an error.
  TORCH_ARG(double, scale_factor) = amp::LossScaler::kScaleFactor;
  TORCH_ARG(int64_t, scale_window) = amp::LossScaler::kScaleWindow;
  TORCH_ARG(std::optional<double>, min_loss_scale) = std::nullopt;
  TORCH_ARG(double, max_loss_scale) = amp::LossScaler::kMaxScale;
};

/// Options of FP16_Optimizer, with Apex's names and defaults.
struct FP16_OptimizerOptions {
  TORCH_ARG(double, static_loss_scale) = 1.0;
  /// Uses a dynamic loss scale instead of the static one.
  TORCH_ARG(bool, dynamic_loss_scale) = false;
  TORCH_ARG(DynamicLossArgs, dynamic_loss_args);
  /// Prints each parameter, and whether it gets a master, to standard output at construction.
  TORCH_ARG(bool, verbose) = true;
};

/// FP32 masters and loss scaling for an optimizer of 16-bit parameters, for programs written before `amp`.
///
///     torch::optim::SGD sgd(model->parameters(), 0.1);
///     apex::fp16_utils::FP16_Optimizer optimizer(sgd, 128.0);
///     optimizer.zero_grad();
///     optimizer.backward(loss);
///     optimizer.clip_master_grads(5.0);
///     optimizer.step();
///
/// The constructor replaces the trainable float16 and bfloat16 parameters in the wrapped optimizer's groups by FP32 masters,
/// which keep the parameters' optimizer state. Float32 parameters and frozen parameters stay. LibTorch's `parameters()` lists a
/// tied parameter once for each module that has it; the constructor keeps the first. Parameters that are unfrozen or added to
/// the wrapped optimizer later get their masters at the next `backward`, `update_master_grads`, `load` or `step` with a
/// closure, with the constructor's errors. Parameters that the program has removed from its groups are no longer written,
/// cleared or saved. The wrapped optimizer must outlive this object. Use it through this object; a scheduler may be built on
/// it.
///
/// Values that the program writes into the model's weights go into the masters before the next step, and into saved masters:
/// the broadcast of a DistributedDataParallel that is made later, a `torch::load` of the model, `clamp_`. (Apex overwrites
/// them.) In a source file that includes `<apex_cpp/amp.h>`, a load of a file in FP32 rounds the values; LibTorch's own takes
/// over the bits. Masters of elements that were not written keep FP32 precision. Writes through `weight.data()` are seen only
/// on a CPU, by 128 values of each weight.
///
/// Parameters may be on any device. With a dynamic scale `update_master_grads` waits for one flag from the device; nothing else
/// waits. Apex: `fp16_utils.FP16_Optimizer`.
class FP16_Optimizer {
 public:
  /// Errors, before anything is changed: TypeError naming group, position and dtype of a trainable parameter that is not
  /// float16, bfloat16 or float32; ValueError for a 16-bit parameter with gaps in memory, and for one that `set_data` ties to
  /// another one; RuntimeError for an optimizer that `amp::initialize` returned, which has masters and scaling already, for one
  /// that was given to it, for a sharded one, and for FusedScheduleFreeAdamW with 16-bit parameters, whose modes would change
  /// the masters alone; ValueError for a loss scale that is not positive, for a scale_factor other than 2, and for a parameter
  /// in two groups.
  explicit FP16_Optimizer(torch::optim::Optimizer& init_optimizer, FP16_OptimizerOptions options = {});
  FP16_Optimizer(torch::optim::Optimizer& init_optimizer, double static_loss_scale, bool dynamic_loss_scale = false,
                 DynamicLossArgs dynamic_loss_args = {}, bool verbose = true);

  FP16_Optimizer(FP16_Optimizer&&) = default;
  FP16_Optimizer& operator=(FP16_Optimizer&&) = default;
  FP16_Optimizer(const FP16_Optimizer&) = delete;
  FP16_Optimizer& operator=(const FP16_Optimizer&) = delete;

  /// Runs backward of loss * loss_scale, in float32, then update_master_grads(). With `update_master_grads` false the scaled
  /// gradients stay in the model, so that further backward passes add to them.
  void backward(const at::Tensor& loss, bool update_master_grads = true, bool retain_graph = false);
  /// Unscales the model's gradients into the masters' gradients, which it overwrites, and the gradients of float32 parameters
  /// in place. Checks for overflow and updates a dynamic loss scale. Errors: RuntimeError for a sparse gradient, for one of
  /// another shape or device or of integers, and for one that DistributedDataParallel has not reduced yet, before anything is
  /// changed; RuntimeError if the loss scale has become unusable.
  ///
  /// As in Apex, a second call without a new backward pass divides the gradients of float32 parameters by the loss scale again,
  /// and a call after a further pass those of earlier passes. To accumulate gradients, call `backward(loss,
  /// update_master_grads=false)` for all passes but the last.
  void update_master_grads();
  /// Steps the masters and copies them to the model's parameters. After an overflow and without a closure it only prints a line
  /// to standard output (depending on amp's verbosity) and returns an undefined tensor. A closure must call `zero_grad` and
  /// `backward` itself. It sees the model with the masters' values, and is called again as long as it overflows. Errors:
  /// RuntimeError for a gradient of a parameter that was unfrozen or added since the backward pass, and ValueError for a
  /// parameter in two groups, before anything is changed; RuntimeError if the closure overflows at the smallest loss scale.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);
  /// Zeroes (or drops) the gradients of masters, float32 parameters and the model's parameters.
  void zero_grad(bool set_grads_to_None = false);
  /// Clips the gradients of masters and float32 parameters to a total norm. Returns the norm before clipping; -1 after an
  /// overflow.
  double clip_master_grads(double max_norm, double norm_type = 2.0);
  /// The gradients that `step` will use, by group and position; undefined if a parameter has none. After an overflow it warns
  /// and returns nullopt.
  std::optional<std::vector<std::vector<at::Tensor>>> inspect_master_grad_data() const;

  double loss_scale() const { return scaler_.loss_scale(); }
  /// Errors: ValueError unless positive and finite in float32.
  void set_loss_scale(double scale) { scaler_.restore(scale, scaler_.unskipped()); }
  const amp::LossScaler& loss_scaler() const { return scaler_; }
  /// Whether the last `update_master_grads` found a gradient that is not finite, so that `step()` will do nothing.
  bool overflow() const { return overflow_; }

  /// The wrapped optimizer, its groups and its state.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  auto& param_groups() const { return optimizer_->param_groups(); }
  auto& state() const { return optimizer_->state(); }
  /// The masters of 16-bit parameters, and the parameters themselves, in the groups' order, as of the last `backward`,
  /// `update_master_grads`, `step` or `load`. The masters get what the program has written into the model at the next `step`.
  const std::vector<at::Tensor>& fp32_from_fp16_params() const { return params_.masters(); }
  const std::vector<at::Tensor>& fp16_params() const { return params_.model_params(); }

  /// For `torch::save(optimizer, …)` and `torch::load(optimizer, …)`. They contain the loss scaler, the overflow, the wrapped
  /// optimizer's state and the masters, but not the model, which must be loaded too. Masters are restored by position, and
  /// weights that the model had before are not taken into them. Errors of `load`, before anything is changed: RuntimeError if
  /// the saved masters or, with torch's optimizers, the groups do not match this optimizer's.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void print_params() const;
  void check_gradients() const;
  std::vector<at::Tensor> stepped_params() const;
  void copy_masters_to_model();
  at::Tensor run_closure(const torch::optim::Optimizer::LossClosure& closure);
  std::vector<at::Tensor> read_masters(torch::serialize::InputArchive& archive) const;

  torch::optim::Optimizer* optimizer_;
  FP16_OptimizerOptions options_;
  amp::LossScaler scaler_;
  detail::TrainedParams params_;
  bool overflow_ = false;
};

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const FP16_Optimizer& optimizer);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, FP16_Optimizer& optimizer);

namespace detail {

template <class T>
struct HoldsFP16Optimizer : std::false_type {};
template <>
struct HoldsFP16Optimizer<FP16_Optimizer> : std::true_type {};
template <class T>
struct HoldsFP16Optimizer<T*> : HoldsFP16Optimizer<std::remove_const_t<T>> {};
template <class T, class... Rest>
struct HoldsFP16Optimizer<std::vector<T, Rest...>> : HoldsFP16Optimizer<T> {};
template <class T, class Deleter>
struct HoldsFP16Optimizer<std::unique_ptr<T, Deleter>> : HoldsFP16Optimizer<T> {};
template <class T>
struct HoldsFP16Optimizer<std::shared_ptr<T>> : HoldsFP16Optimizer<T> {};
template <class... Ts>
struct HoldsFP16Optimizer<std::tuple<Ts...>> : std::bool_constant<(HoldsFP16Optimizer<std::decay_t<Ts>>::value || ...)> {};

[[noreturn]] void throw_not_for_initialize();

}  // namespace detail
}  // namespace apex::fp16_utils

namespace apex::amp {

/// `initialize` does not accept an FP16_Optimizer, alone or in a list: always RuntimeError, before anything is changed
/// (Apex: CHK-03, CHK-04).
template <class Models, class Optimizers, class... Rest,
          class = std::enable_if_t<fp16_utils::detail::HoldsFP16Optimizer<std::decay_t<Optimizers>>::value>>
std::pair<std::decay_t<Models>&, std::decay_t<Optimizers>&> initialize(Models&&, Optimizers&&, const Rest&...) {
  fp16_utils::detail::throw_not_for_initialize();
}

}  // namespace apex::amp
