#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include <apex_cpp/amp/scaling/scale_history.h>

#include "opt_levels/loss_scale.h"

namespace apex::amp {

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
  bool looks() const { return looks_; }
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
  bool looks_;
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
