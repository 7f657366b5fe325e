#pragma once

#include <limits>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace apex::amp {

/// What became of an optimizer's most recent step.
struct StepResult {
  /// The step was skipped because a gradient overflowed: no parameter, master, moment or counter changed.
  bool skipped = false;
  /// Loss scale in force after the last `scale_loss` block of this optimizer (already lowered if that block overflowed).
  double loss_scale = 1.0;
  /// Total norm that the last `amp::clip_grad_norm_` found, before clipping; NaN if none was asked for.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  /// Name of the first parameter with a non-finite gradient when the step was skipped; empty otherwise.
  std::string first_nonfinite;
};

/// The result of `optimizer`'s most recent `step`. Host data, no synchronisation.
/// Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`.
StepResult step_result(torch::optim::Optimizer& optimizer);

}  // namespace apex::amp
