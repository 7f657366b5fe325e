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

/// Why a loss scale was moved.
enum class ScaleChange {
  overflow,  ///< a gradient was Inf or NaN: the step is skipped, a dynamic scale halved, down to min_loss_scale
  growth,    ///< scale_window clean updates: doubled, up to max_loss_scale
  restored,  ///< a saved scale was put in force
};

/// "overflow", "growth" or "restored".
const char* name_of(ScaleChange change);

/// One event in the life of a loss scale. Clean updates between events are not recorded.
struct ScaleEvent {
  int64_t update = 0;  // of this scaler since it was made, from 1; a restored scale has the number of the update before it
  double before = 1;
  double after = 1;  // equal to `before` at a floor or a ceiling
  ScaleChange change = ScaleChange::overflow;

  bool skipped() const { return change == ScaleChange::overflow; }
};

/// The newest events of one loss scaler, oldest first. Host data: writing it costs next to nothing and never synchronises.
class ScaleHistory {
 public:
  static constexpr size_t kCapacity = 1000;

  const std::deque<ScaleEvent>& events() const { return events_; }
  /// How many events are kept; the oldest ones make room. 0: none.
  size_t capacity() const { return capacity_; }
  void set_capacity(size_t events);
  void clear() { events_.clear(); }

  /// Comma-separated values under the header update,scale_before,scale_after,skipped,reason. Scales are exact.
  void write_csv(std::ostream& out) const;

  void add(const ScaleEvent& event);

 private:
  size_t capacity_ = kCapacity;
  std::deque<ScaleEvent> events_;
};

using opt_levels::LossScale;

/// The loss scale of one loss: static, or dynamic with halving on overflow and doubling after `scale_window` clean updates.
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

  /// Dynamic: starts at min(max_loss_scale, 2^16). Static: keeps `loss_scale.value` for ever, and looks for overflow with
  /// `skip_nonfinite` only.
  explicit LossScaler(LossScale loss_scale, std::optional<double> min_loss_scale = std::nullopt,
                      double max_loss_scale = kMaxScale, bool skip_nonfinite = false);

  double loss_scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }
  /// Whether it looks for overflow: always if dynamic.
  bool checks_overflow() const { return checks_overflow_; }
  /// Clean updates since the scale last changed.
  int64_t unskipped() const { return unskipped_; }
  int64_t scale_window() const { return scale_window_; }
  /// Clean updates after which a dynamic scale doubles (2000 unless set). A count that has reached the new window already
  /// doubles the scale at the next clean update. Errors: ValueError if not positive.
  void set_scale_window(int64_t updates);

  /// Calls of `update_scale` so far, and how many of them in a row, up to the last one, found an overflow.
  int64_t updates() const { return updates_; }
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  /// `scale_loss` warns when that many steps in a row have overflowed (10 unless set; 0: never).
  int64_t skip_warning() const { return skip_warning_; }
  /// Errors: ValueError if negative.
  void set_skip_warning(int64_t skips);
  /// What happened to the scale, for a look afterwards; settable in length. It is no part of saved state.
  const ScaleHistory& history() const { return history_; }
  ScaleHistory& history() { return history_; }
  /// The newest scales in one line: "65536 -> 32768 -> 16384".
  std::string describe_history() const;

  /// Puts a saved scale and count in force. Errors: ValueError unless the scale is finite and positive and the count >= 0.
  void restore(double loss_scale, int64_t unskipped);

  /// Forgets what earlier `unscale` calls found. No synchronisation.
  void clear_overflow_state();

  /// master_grads[i] = model_grads[i] / loss_scale, any dtypes, in float32 arithmetic; non-finite model gradients, and
  /// quotients that do not fit, set the overflow flag (their values are still written). Where both lists are the same tensors
  /// and the scale is a static 1, nothing is written.
  void unscale(at::TensorList model_grads, at::TensorList master_grads);

  /// master_grads[i] = model_grads[i] / loss_scale + stashed_grads[i]; only the model gradients are looked at for overflow,
  /// since the stashed ones were when they came in.
  void unscale_with_stashed(at::TensorList model_grads, at::TensorList stashed_grads, at::TensorList master_grads);

  // What both are made of, and the fused order uses with factors of its own.
  /// out[i] = in[i] * factor; non-finite values of `in`, and products that do not fit, set the overflow flag.
  void scale(at::TensorList in, at::TensorList out, double factor);
  /// out[i] = a * x[i] + b * y[i]; non-finite values of `x`, and sums that do not fit because of it, set the overflow flag.
  void axpby(at::TensorList x, at::TensorList y, at::TensorList out, double a, double b);
  /// Sets the overflow flag if the L2 norm of grads / loss_scale is not finite, and returns that norm: float32, one element.
  /// Does nothing where nobody looks for overflow, and returns an undefined tensor; for no gradients too.
  at::Tensor check(at::TensorList grads);

  /// Whether an `unscale` since `clear_overflow_state` found an overflow; never where nobody looks. Waits for the device.
  bool overflow_found() const;
  /// Moves the scale, if dynamic, by what was found. Returns whether the step must be skipped: never where nobody looks.
  /// Errors (before anything moves): RuntimeError for a halving that would leave no usable scale.
  bool update_scale() { return update_scale(overflow_found()); }
  bool update_scale(bool overflow);

 private:
  void look_at(at::TensorList tensors);
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
  int64_t skipped_in_a_row_ = 0;
  int64_t skip_warning_ = kSkipWarning;
  ScaleHistory history_;
  at::Tensor found_inf_;
};

}  // namespace apex::amp

namespace apex::amp::detail {

/// Errors: RuntimeError that names the remedy where work on `device` is captured in a CUDA graph and the host is to decide by
/// the gradients whether to step, which a graph cannot follow. `caller` is who was called.
void check_capture(const LossScaler& scaler, const char* caller, c10::Device device);

/// Sees whether a loss and its scaled copy are differentiated, by hooks on both that hold nothing of their graphs: of the whole
/// backward pass or of `torch::autograd::grad`, on whatever thread it runs. A loss that needs no gradient is not watched.
class BackwardWatcher {
 public:
  BackwardWatcher() = default;
  BackwardWatcher(const at::Tensor& loss, const at::Tensor& scaled);
  BackwardWatcher(BackwardWatcher&&) = default;
  BackwardWatcher& operator=(BackwardWatcher&&) = default;
  ~BackwardWatcher() { stop(); }

  /// Errors: RuntimeError with the remedy if the loss was differentiated and the scaled one was not, or if neither was and
  /// nobody made gradients (`has_grads`) in another way.
  void check(bool has_grads) const;
  /// Takes the hook off the loss.
  void stop();

 private:
  struct Seen {
    std::atomic<bool> loss{false}, scaled{false};
  };
  at::Tensor loss_;
  unsigned hook_ = 0;
  std::shared_ptr<Seen> seen_;
};

}  // namespace apex::amp::detail
