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
  /// "cuda" or "cpu". A scaler for CUDA is disabled, with a warning, where there is no GPU.
  TORCH_ARG(DeviceTypeArg, device) = c10::kCUDA;
  TORCH_ARG(double, init_scale) = 65536.0;
  /// What the scale is multiplied by after `growth_interval` updates in a row without Inf or NaN. Above 1.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// What the scale is multiplied by after an update with Inf or NaN. Below 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// False: `step` steps, and everything else does nothing.
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
/// Scale and growth counter are scalars on the device of the first output given to `scale`. What is known of an optimizer
/// between two updates is tied to the object and follows it when it is moved. May be moved, not copied; not for two threads at
/// once. An optimizer that derives from `StepSupportsAmpScaling`, as all of `apex::optimizers` do, unscales and skips in its
/// own step, without synchronisation: its gradients are read once to look for Inf and NaN, and not written. A tied parameter's
/// gradient, which LibTorch's `parameters()` lists once for each module that has it, is unscaled once.
class GradScaler {
 public:
  /// "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker", in this order; empty for a disabled
  /// scaler.
  using StateDict = torch::OrderedDict<std::string, double>;

  /// Errors, for an enabled scaler: RuntimeError for a growth factor not above 1 or a backoff factor not below 1; ValueError
  /// for a scale that is not finite and positive.
  explicit GradScaler(const GradScalerOptions& options);
  /// Python's order of arguments.
  explicit GradScaler(DeviceTypeArg device = c10::kCUDA, double init_scale = 65536.0, double growth_factor = 2.0,
                      double backoff_factor = 0.5, int64_t growth_interval = 2000, bool enabled = true);
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  /// `outputs` times the scale, differentiably, on the device of the outputs. No synchronisation.
  /// Errors: ValueError for an undefined tensor.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(at::TensorList outputs) { return scale(outputs.vec()); }
  /// The same for every tensor of a container, however nested: vectors, arrays, tuples, pairs, optionals, maps. The container's
  /// type is kept.
  template <class Outputs>
  Outputs scale(const Outputs& outputs) {
    static_assert(detail::kHoldsTensors<Outputs>, "GradScaler::scale: outputs must be a Tensor or a container of Tensors");
    return detail::map_tensors(outputs, [this](const at::Tensor& output) { return scale(output); });
  }

  /// Divides the optimizer's gradients by the scale, in place, and looks for Inf and NaN; `step` then does not do it again.
  /// Call it once the last gradient has been accumulated. No synchronisation.
  /// Errors, before anything is changed: RuntimeError before the first `scale`, when called twice between two updates, or after
  /// `step`; ValueError for a float16 gradient.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales the gradients, unless `unscale_` did, and calls the optimizer's `step`; answers what that answers, or nothing
  /// where it was skipped on account of an Inf or NaN. Synchronises once for every device with gradients; not at all for an
  /// optimizer that derives from `StepSupportsAmpScaling`, whose step is always called.
  /// Errors, before anything is changed: RuntimeError for a closure (unless disabled), before the first `scale`, when called
  /// twice between two updates, or for an optimizer without gradients; ValueError as `unscale_`.
  std::optional<at::Tensor> step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends the iteration: moves the scale by what the steps found, and forgets what is known of the optimizers.
  /// No synchronisation. Errors: RuntimeError before the first `scale`, or if no `step` or `unscale_` came before it.
  void update();
  /// Ends the iteration and sets the scale. Errors: RuntimeError before the first `scale`, or for a tensor of other than one
  /// element, on another device type than the scaler's, or requiring a gradient; ValueError for a number that is not finite and
  /// positive.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// The scale; 1 if disabled. Synchronises with the scale's device.
  double get_scale() const;
  /// Updates in a row without Inf or NaN, since the scale changed; 0 if disabled. Synchronises.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor(); }
  void set_growth_factor(double factor) { options_.growth_factor(factor); }
  double get_backoff_factor() const { return options_.backoff_factor(); }
  void set_backoff_factor(double factor) { options_.backoff_factor(factor); }
  int64_t get_growth_interval() const { return options_.growth_interval(); }
  /// A count that has reached the new interval already lets the scale grow at the next clean update.
  void set_growth_interval(int64_t interval) {
    options_.growth_interval(interval);
    tracker_may_be_past_ = true;
  }
  bool is_enabled() const { return options_.enabled(); }

  /// To be saved after `update`. Synchronises.
  StateDict state_dict() const;
  /// Does nothing for a disabled scaler. Errors, before anything is changed: RuntimeError for an empty state (that of a
  /// disabled scaler) or one that lacks a key; ValueError for a scale that is not finite and positive.
  void load_state_dict(const StateDict& state);

  /// `torch::save` and `torch::load`. Errors: RuntimeError for saving in the middle of an iteration, and as `load_state_dict`.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct OptimizerState {
    Stage stage = Stage::ready;
    std::vector<at::Tensor> found_infs;  // one for every device with gradients
  };

  OptimizerState& state_of(const torch::optim::Optimizer& optimizer);
  void check_scale_made(const char* caller) const;
  std::vector<at::Tensor> unscale(torch::optim::Optimizer& optimizer) const;
  /// More than 0 if one of them is; on the scale's device.
  at::Tensor combined(const std::vector<at::Tensor>& found_infs) const;
  at::Tensor step_with_amp_scaling(torch::optim::Optimizer& optimizer, StepSupportsAmpScaling& scaling, OptimizerState& state);

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;                  // undefined until the first output
  at::Tensor growth_tracker_;         // int32
  bool tracker_may_be_past_ = false;  // the growth interval: torch's update lets the scale grow at the interval alone
  std::map<const void*, OptimizerState> optimizer_states_;
};

}  // namespace apex::amp
