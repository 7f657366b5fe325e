#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/tensors/map_tensors.h>

namespace apex::amp {

class StepSupportsAmpScaling;

/// Options of `GradScaler`, under Python's names.
struct GradScalerOptions {
  /// "cuda" or "cpu". Without a GPU a scaler for CUDA warns and is disabled.
  TORCH_ARG(DeviceTypeArg, device) = c10::kCUDA;
  TORCH_ARG(double, init_scale) = 65536.0;
  /// Factor for the scale after `growth_interval` updates in a row without Inf or NaN. Above 1.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// Factor for the scale after an update with Inf or NaN. Above 0 and below 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// At least 1.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// False: `step` calls the optimizer's step, and all other methods do nothing.
  TORCH_ARG(bool, enabled) = true;
};

/// Dynamic loss scaling around optimizers of any class. Python: `torch.amp.GradScaler`.
///
/// ```
/// amp::GradScaler scaler("cuda");
/// for (auto& [x, y] : data) {
///   optimizer.zero_grad();
///   scaler.scale(loss_of(x, y)).backward();
///   scaler.unscale_(optimizer);  // only to read or clip the gradients first
///   scaler.step(optimizer);      // skipped after an Inf or NaN
///   scaler.update();
/// }
/// ```
/// Scale and growth counter are scalar tensors on the device of the first output given to `scale`. The state of an optimizer
/// between two updates belongs to the optimizer object and follows it when it is moved. A scaler may be moved but not copied,
/// and is not thread-safe. An optimizer that derives from `StepSupportsAmpScaling`, as all of `apex::optimizers` do, unscales
/// and skips in its own step: its gradients are read once to check for Inf and NaN, and not written. With a scaler on a
/// GPU, steps of `apex::optimizers` that create state, such as the first, then synchronise, and so does every step of
/// Muon, FusedScheduleFreeAdamW and DistributedFusedAdam; other steps do not.
/// LibTorch's `parameters()` lists a tied parameter once per module; its gradient is unscaled once.
class GradScaler {
 public:
  /// "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker", in this order; empty for a disabled
  /// scaler.
  using StateDict = torch::OrderedDict<std::string, double>;

  /// Errors, for an enabled scaler: RuntimeError for a growth factor not above 1, or a backoff factor not between 0 and 1;
  /// ValueError for a growth interval below 1, or a scale that is not positive and finite in float32.
  explicit GradScaler(const GradScalerOptions& options);
  /// The arguments in Python's order.
  explicit GradScaler(DeviceTypeArg device = c10::kCUDA, double init_scale = 65536.0, double growth_factor = 2.0,
                      double backoff_factor = 0.5, int64_t growth_interval = 2000, bool enabled = true);
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  /// Returns `outputs` times the scale, differentiable, on the device of the outputs. No synchronisation. After an
  /// optimizer's step has thrown, this begins a new iteration, unless that step was repeated or `update` called.
  /// Errors: ValueError for an undefined tensor.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(at::TensorList outputs) { return scale(outputs.vec()); }
  /// Scales every tensor of a container: vectors, arrays, tuples, pairs, optionals and maps, nested in any way. Returns the
  /// container's type.
  template <class Outputs>
  Outputs scale(const Outputs& outputs) {
    static_assert(detail::kHoldsTensors<Outputs>, "GradScaler::scale: outputs must be a Tensor or a container of Tensors");
    return detail::map_tensors(outputs, [this](const at::Tensor& output) { return scale(output); });
  }

  /// Divides the optimizer's gradients by the scale, in place, and checks them for Inf and NaN; `step` then does neither. Call
  /// it after the last gradient has been accumulated. No synchronisation. If the program leaves the iteration between this and
  /// `step`, as after an error of its own, call `update(get_scale())`: it ends the iteration and changes neither the scale
  /// nor the growth counter.
  /// Errors, before anything is changed: RuntimeError before the first `scale`, for a second call between two updates, after
  /// `step`, or for an optimizer whose parameters have moved to a handle of `amp::initialize` or LARC; ValueError for a
  /// gradient that is float16, repeats elements in memory (`expand`), or was made in inference mode.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales the gradients, unless `unscale_` did, and calls the optimizer's `step`. Returns the result of that step, or
  /// nothing if the step was skipped because of Inf or NaN. Synchronises once per device with gradients; for an
  /// optimizer that derives from `StepSupportsAmpScaling`, whose step is always called, only where this step does.
  /// If the optimizer's step throws, it may be called again, or `update` may end the iteration. Otherwise the next
  /// `scale` begins a new one, for all optimizers: their gradients count as scaled again, and what this iteration found does
  /// not change the scale. Call `zero_grad` before it. (In Python, the next step would use gradients with the scale.)
  /// Errors, before anything is changed: RuntimeError for a closure (unless disabled), before the first `scale`, for a second
  /// call between two updates, or for an optimizer without gradients; the errors of `unscale_`. An optimizer that
  /// derives from `StepSupportsAmpScaling` may have no gradients, or float16 ones (LARC refuses these); `update` throws if no
  /// optimizer had gradients.
  std::optional<at::Tensor> step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends the iteration: updates the scale from what the steps found, and resets the state of the optimizers. No
  /// synchronisation. Errors: RuntimeError before the first `scale`, or without an earlier `step` or `unscale_`.
  void update();
  /// Ends the iteration and sets the scale. Errors: RuntimeError before the first `scale`, or for a tensor with more or less
  /// than one element, on another device type than the scaler's, or that requires grad; ValueError for a number that is not
  /// positive and finite in float32.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// The scale; 1 if disabled. Synchronises with the scale's device.
  double get_scale() const;
  /// Number of updates without Inf or NaN since the scale last changed; 0 if disabled. Synchronises.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor(); }
  /// Errors of the setters, before anything is changed: as the constructor's.
  void set_growth_factor(double factor);
  double get_backoff_factor() const { return options_.backoff_factor(); }
  void set_backoff_factor(double factor);
  int64_t get_growth_interval() const { return options_.growth_interval(); }
  /// If the count has already reached the new interval, the scale grows at the next update without Inf or NaN.
  void set_growth_interval(int64_t interval);
  bool is_enabled() const { return options_.enabled(); }

  /// Call it after `update`. Synchronises.
  StateDict state_dict() const;
  /// No-op for a disabled scaler. Errors, before anything is changed: RuntimeError for an empty state (of a disabled scaler) or
  /// a missing key; ValueError for a count that is not whole, or is negative or too large; as the constructor's for the rest.
  void load_state_dict(const StateDict& state);

  /// For `torch::save` and `torch::load`. Errors: RuntimeError for saving in the middle of an iteration, and as
  /// `load_state_dict`.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct OptimizerState {
    Stage stage = Stage::ready;
    std::vector<at::Tensor> found_infs;  // one per device with gradients
    bool failed = false;                 // the optimizer's step has thrown
  };

  void set_options(const GradScalerOptions& options);
  OptimizerState& state_of(const torch::optim::Optimizer& optimizer);
  /// Calls the optimizer's own step.
  static at::Tensor call_step(torch::optim::Optimizer& optimizer, OptimizerState& state);
  /// A program that caught the error of a step goes on with the next batch, without `update`.
  void leave_failed_iteration();
  void check_scale_made(const char* caller) const;
  std::vector<at::Tensor> unscale(torch::optim::Optimizer& optimizer) const;
  /// Greater than 0 if any of them is; on the scale's device.
  at::Tensor combined(const std::vector<at::Tensor>& found_infs) const;
  at::Tensor step_with_amp_scaling(torch::optim::Optimizer& optimizer, StepSupportsAmpScaling& scaling, OptimizerState& state);

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;                  // undefined until the first output
  at::Tensor growth_tracker_;         // int32
  bool tracker_may_be_past_ = false;  // LibTorch's update grows the scale only if counter and interval are equal
  std::map<const void*, OptimizerState> optimizer_states_;
};

}  // namespace apex::amp
