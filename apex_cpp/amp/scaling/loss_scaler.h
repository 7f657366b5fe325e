#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include "opt_levels/properties.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace apex::amp {

/// Why a loss scale changed.
enum class ScaleChange {
  overflow,  ///< a gradient was Inf or NaN: the step is skipped, and a dynamic scale is halved, down to min_loss_scale
  growth,    ///< scale_window clean updates in a row: the scale is doubled, up to max_loss_scale
  restored,  ///< a saved scale was loaded
};

/// "overflow", "growth" or "restored".
const char* name_of(ScaleChange change);

/// One change of a loss scale. Clean updates between changes are not recorded.
struct ScaleEvent {
  int64_t update = 0;  // counted from 1 since the scaler was made; for `restored`, the last update before it
  double before = 1;
  double after = 1;  // equal to `before` at min_loss_scale or max_loss_scale
  ScaleChange change = ScaleChange::overflow;

  bool skipped() const { return change == ScaleChange::overflow; }
};

/// The newest events of one loss scaler, oldest first. Host data; recording never synchronises.
class ScaleHistory {
 public:
  static constexpr size_t kCapacity = 1000;

  const std::deque<ScaleEvent>& events() const { return events_; }
  /// The largest number of events kept; the oldest are dropped first. 0 keeps none.
  size_t capacity() const { return capacity_; }
  void set_capacity(size_t events);
  void clear() { events_.clear(); }

  /// Writes CSV with the header update,scale_before,scale_after,skipped,reason. Scales are written exactly.
  void write_csv(std::ostream& out) const;

  void add(const ScaleEvent& event);

 private:
  size_t capacity_ = kCapacity;
  std::deque<ScaleEvent> events_;
};

using opt_levels::LossScale;

/// The loss scale of one loss: static, or dynamic with halving on overflow and doubling after `scale_window` clean updates
/// (PyTorch: `growth_interval`).
///
/// The scale lives on the host in double. The overflow flag is an int32 tensor on the device of the gradients; reading it in
/// `overflow_found` is the only synchronisation. Not safe to use from two threads at once. Apex: `amp.scaler.LossScaler`.
class LossScaler {
 public:
  static constexpr double kInitScale = 65536.0;
  static constexpr double kMaxScale = opt_levels::kMaxLossScale;
  static constexpr double kScaleFactor = 2.0;
  static constexpr int64_t kScaleWindow = 2000;
  static constexpr int64_t kSkipWarning = 10;

  /// A dynamic scale starts at min(max_loss_scale, 2^16). A static scale stays `loss_scale.value`; gradients are then checked
  /// for overflow only with `skip_nonfinite`.
  explicit LossScaler(LossScale loss_scale, std::optional<double> min_loss_scale = std::nullopt,
                      double max_loss_scale = kMaxScale, bool skip_nonfinite = false);

  double loss_scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }
  /// Whether gradients are checked for overflow: with a dynamic scale or `skip_nonfinite`.
  bool checks_overflow() const { return checks_overflow_; }
  /// Clean updates since the scale last changed.
  int64_t unskipped() const { return unskipped_; }
  /// Number of clean updates in a row after which a dynamic scale doubles, 2000 by default. PyTorch's GradScaler calls this
  /// `growth_interval`. If `unskipped` has already reached the new window, the next clean update doubles the scale.
  /// Errors: ValueError if not positive.
  int64_t scale_window() const { return scale_window_; }
  void set_scale_window(int64_t updates);
  /// PyTorch's names for `scale_window` and `set_scale_window`.
  int64_t growth_interval() const { return scale_window_; }
  void set_growth_interval(int64_t updates) { set_scale_window(updates); }

  /// Number of `update_scale` calls so far, the number of those with an overflow, and the number of overflows in a row up to
  /// the last call.
  int64_t updates() const { return updates_; }
  int64_t overflows() const { return overflows_; }
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  /// `scale_loss` warns after this many overflows in a row: 10 by default, 0 for never.
  int64_t skip_warning() const { return skip_warning_; }
  /// Errors: ValueError if negative.
  void set_skip_warning(int64_t skips);
  /// Past changes of the scale. Not part of saved state.
  const ScaleHistory& history() const { return history_; }
  ScaleHistory& history() { return history_; }
  /// The newest scales on one line: "65536 -> 32768 -> 16384".
  std::string describe_history() const;

  /// Loads a saved scale and `unskipped` count. Errors: ValueError unless the scale is positive and
  /// finite in float32, where it may not be subnormal, and the count >= 0.
  void restore(double loss_scale, int64_t unskipped);

  /// Clears the overflow flag. No synchronisation.
  void clear_overflow_state();

  /// master_grads[i] = model_grads[i] / loss_scale, for any dtypes, in float32 arithmetic. Non-finite model gradients and
  /// quotients that overflow set the overflow flag; the values are still written. If both lists hold the same tensors and the
  /// scale is a static 1, nothing is written.
  void unscale(at::TensorList model_grads, at::TensorList master_grads);

  /// master_grads[i] = model_grads[i] / loss_scale + stashed_grads[i]. Only the model gradients are checked for overflow: the
  /// stashed gradients were checked in their own pass.
  void unscale_with_stashed(at::TensorList model_grads, at::TensorList stashed_grads, at::TensorList master_grads);

  // The operations behind `unscale` and `unscale_with_stashed`. The fused path calls them with its own factors.
  /// out[i] = in[i] * factor. Non-finite values of `in` and products that overflow set the overflow flag.
  void scale(at::TensorList in, at::TensorList out, double factor);
  /// out[i] = a * x[i] + b * y[i]. Non-finite values of `x`, and sums that overflow for a > 1, set the overflow flag.
  void axpby(at::TensorList x, at::TensorList y, at::TensorList out, double a, double b);
  /// Sets the overflow flag if 16-bit `sums` have Inf or NaN and `earlier`, a part of them, had none: finite gradients may have
  /// sums that overflow. Does nothing unless `checks_overflow()`.
  void check_sums(at::TensorList sums, at::TensorList earlier);
  /// Sets the overflow flag if the L2 norm of grads / loss_scale is not finite, and returns this norm: float32, one element.
  /// Without gradients, or unless `checks_overflow()`, does nothing and returns an undefined tensor.
  at::Tensor check(at::TensorList grads);

  /// Reads the overflow flag, which gradients set since `clear_overflow_state`; false unless `checks_overflow()`. Synchronises.
  bool overflow_found() const;
  /// Updates a dynamic scale: halves it after an overflow, doubles it after `scale_window` clean updates. Returns whether the
  /// step must be skipped; false unless `checks_overflow()`. Errors, before any change: RuntimeError if halving would make the
  /// scale smaller than the smallest normal float32.
  bool update_scale() { return update_scale(overflow_found()); }
  bool update_scale(bool overflow);

 private:
  void find_nonfinite(at::TensorList tensors);
  void check_products(at::TensorList products, double factor);
  const at::Tensor& found_inf(at::TensorList grads);
  double backed_off() const;
  void move_to(double scale, ScaleChange change);

  bool dynamic_;
  bool checks_overflow_;
  double scale_;
  double min_loss_scale_;  // 0: no floor
  double max_loss_scale_;
  int64_t scale_window_ = kScaleWindow;
  int64_t unskipped_ = 0;
  int64_t updates_ = 0;
  int64_t overflows_ = 0;
  int64_t skipped_in_a_row_ = 0;
  int64_t skip_warning_ = kSkipWarning;
  ScaleHistory history_;
  at::Tensor found_inf_;
  at::Tensor in_sums_, in_earlier_;  // of check_sums, kept so that no pass allocates them
};

}  // namespace apex::amp

namespace apex::amp::detail {

/// Errors: RuntimeError naming `caller` if `device` is capturing a CUDA graph and `scaler` checks for overflow: the host then
/// decides whether to step, which a graph cannot repeat.
void check_capture(const LossScaler& scaler, const char* caller, c10::Device device);

/// Errors: RuntimeError naming `caller` if `device` is capturing a CUDA graph. Call it with a history of FP8 scales.
void check_float8_capture(const char* caller, c10::Device device);

/// Detects, by hooks on both, whether a loss and its scaled copy are differentiated, by `backward` or `torch::autograd::grad`,
/// on any thread. The hooks do not keep the graph alive. A loss that requires no gradient is not watched.
class BackwardWatcher {
 public:
  BackwardWatcher() = default;
  BackwardWatcher(const at::Tensor& loss, const at::Tensor& scaled);
  BackwardWatcher(BackwardWatcher&&) = default;
  BackwardWatcher& operator=(BackwardWatcher&&) = default;
  ~BackwardWatcher() { stop(); }

  /// Errors: RuntimeError if the loss was differentiated and the scaled loss was not, or if neither was and no parameter got a
  /// gradient in another way (`has_grads`).
  void check(bool has_grads) const;
  bool saw_scaled_loss() const { return seen_ && seen_->scaled; }
  /// Removes the hook from the loss.
  void stop();

 private:
  struct Seen {
    std::atomic<bool> loss{false}, scaled{false};
    std::weak_ptr<torch::autograd::Node> grad_fn;  // the loss's, with the hook
  };
  at::Tensor loss_;
  unsigned hook_ = 0;
  std::shared_ptr<Seen> seen_;
};

}  // namespace apex::amp::detail
