#pragma once

#include <apex_cpp/amp/masters/grad_order.h>

namespace apex::amp::detail {

/// Gradients in the fused order (materialize_master_grads=false): they stay in the model, scaled, until one pass over memory
/// unscales, clips, updates and copies (BWD-03, BWD-30). This keeps the scale that they have in common, and what clipping
/// multiplies them by.
///
/// Gradients that a step has used stay where they are. Those of model params count no more then, like master gradients in
/// Apex's order; native ones do until zero_grad.
class FusedOrder final : public GradOrder {
 public:
  using GradOrder::GradOrder;

  void enter() override;
  /// Brings all gradients to a common scale and looks for overflow where the scale is dynamic. Inf and NaN that were put aside
  /// are not reported again.
  void exit(LossScaler& scaler) override;
  void abandon() override;

  /// Whether gradients wait in the model for a step.
  bool pending() const { return pending_; }
  /// What gradients are to be multiplied by: 1 / scale, with clipping in it.
  double grad_scale() const { return clip_ / scale_; }
  /// Has the step multiply by what makes their norm at most `max_norm`. Returns the norm from before; waits for their device.
  double clip(double max_norm);
  /// Unscales them, clipped, into the masters and in place, as Apex's order would have it.
  void unscale();

  /// A step used the gradients, or was skipped on their account.
  void consume() { pending_ = false; }
  /// The gradients were zeroed.
  void reset();

 private:
  double grad_norm();

  double scale_ = 1.0;  // that gradients have (Apex: most_recent_scale)
  double clip_ = 1.0;
  bool pending_ = false;  // Apex: scale_set_by_backward
  at::Tensor norm_;       // float32, one element: of all gradients before clipping, if the check has found it
};

}  // namespace apex::amp::detail
