#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <apex_cpp/amp/scaling/loss_scaler.h>

namespace apex::amp::detail {

/// Gradients in the fused order (materialize_master_grads=false): they stay in the model, scaled, until one pass over memory
/// unscales, clips, updates and copies (BWD-03, BWD-30). This keeps the scale that they have in common, and what clipping
/// multiplies them by. Tensors are those of one optimizer's stash: model params, whose masters are stepped, and native ones.
///
/// Gradients that a step has used stay where they are. Those of model params count no more then, like master gradients in
/// Apex's order; native ones do until zero_grad.
class FusedOrder {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Puts gradients aside, so that a backward pass starts from nothing.
  void enter(const Tensors& model_params, const Tensors& native_params);
  /// Adds what was put aside to the pass's gradients, at a common scale, and looks for overflow where the scale is dynamic.
  /// Inf and NaN that were put aside are not reported again.
  void exit(const Tensors& model_params, const Tensors& native_params, LossScaler& scaler);
  /// Gives back what was put aside in place of the pass's gradients.
  void abandon(const Tensors& model_params, const Tensors& native_params);

  /// Total L2 norm of the gradients as a step will see them. Waits for their device.
  double grad_norm(const Tensors& model_params, const Tensors& native_params);
  void clip_by(double coefficient) { clip_ *= coefficient; }

  /// Whether gradients wait in the model for a step.
  bool pending() const { return pending_; }
  /// What gradients are to be multiplied by: 1 / scale, with clipping in it.
  double grad_scale() const { return clip_ / scale_; }

  /// A step used the gradients, or was skipped on their account.
  void consume() { pending_ = false; }
  /// The gradients were zeroed, or unscaled where they are.
  void reset();

 private:
  template <class Visit>
  void for_each(const Tensors& model_params, const Tensors& native_params, const Visit& visit);

  Tensors model_stash_, native_stash_;  // put aside for the time of a pass
  double scale_ = 1.0;                  // that gradients have (Apex: most_recent_scale)
  double clip_ = 1.0;
  bool pending_ = false;  // Apex: scale_set_by_backward
  at::Tensor norm_;       // float32, one element: of all gradients before clipping, if the check has found it
};

}  // namespace apex::amp::detail
