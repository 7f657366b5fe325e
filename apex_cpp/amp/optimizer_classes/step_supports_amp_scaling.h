#pragma once

#include <ATen/core/Tensor.h>

namespace apex::amp {

/// Base, beside `torch::optim::Optimizer`, of an optimizer whose `step` unscales its gradients and skips itself, on the device.
///
/// `GradScaler::step` then neither unscales nor reads anything back: it looks for Inf and NaN in the gradients, which it does
/// not write, sets both tensors, calls `step`, and drops them after it. `step` divides every gradient by `grad_scale` where
/// that is defined, and must change no parameter and no state where `found_inf` is defined and not 0. Without a scaler both are
/// undefined. Python: `_step_supports_amp_scaling`.
class StepSupportsAmpScaling {
 public:
  virtual ~StepSupportsAmpScaling() = default;

  /// float32, one element, on the scaler's device; undefined once the gradients are unscaled. A value that is there before
  /// `GradScaler::step` is a scale of the user's own, and is multiplied in.
  at::Tensor grad_scale;
  /// float32, one element, on the scaler's device.
  at::Tensor found_inf;

 protected:
  StepSupportsAmpScaling() = default;
  StepSupportsAmpScaling(const StepSupportsAmpScaling&) = default;
  StepSupportsAmpScaling& operator=(const StepSupportsAmpScaling&) = default;
  StepSupportsAmpScaling(StepSupportsAmpScaling&&) = default;
  StepSupportsAmpScaling& operator=(StepSupportsAmpScaling&&) = default;
};

}  // namespace apex::amp
