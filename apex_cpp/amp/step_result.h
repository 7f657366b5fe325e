#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp/statistics/tensor_statistics.h>

namespace apex::amp {

/// The result of an optimizer's most recent step.
struct StepResult {
  /// The step was skipped because a gradient overflowed: no parameter, master, moment or counter changed.
  bool skipped = false;
  /// Loss scale in force after the last `scale_loss` block of this optimizer (already lowered if that block overflowed).
  double loss_scale = 1.0;
  /// Total gradient norm before clipping, from the last `amp::clip_grad_norm_`; NaN if it was never called.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  /// If the step was skipped, the name of the first parameter with a non-finite gradient: of this optimizer, or of another
  /// optimizer of the same block if this one's gradients are finite. Empty otherwise.
  std::string first_nonfinite;

  // For a skipped step, as of the end of the block that overflowed:
  /// Numbers of Inf and NaN values in that parameter's gradient.
  int64_t inf_count = 0;
  int64_t nan_count = 0;
  /// Number of gradients of the same optimizer with Inf or NaN.
  int64_t nonfinite_grads = 0;
  /// Statistics of that gradient. A 16-bit gradient whose parameter has a master is as backward left it, scaled by
  /// `loss_scale_before`. Another gradient is scaled if the optimizer unscales in its step
  /// (`materialize_master_grads(false)`), else unscaled. Empty if every gradient was finite, and for a sharded optimizer.
  std::optional<TensorStatistics> grad;
  /// For gradients reduced over processes: the ranks that had Inf or NaN in gradients reduced together with this one; empty if
  /// only the sum is not finite. With `parallel::share_overflow`: the ranks that overflowed.
  std::vector<int> nonfinite_ranks;
  /// Whether the loss itself was Inf or NaN; no loss scale helps then.
  bool nonfinite_loss = false;
  /// The loss that overflowed, its scale in that block, and its scale when the step was skipped.
  int64_t loss_id = 0;
  double loss_scale_before = 1.0;
  double loss_scale_after = 1.0;
};

}  // namespace apex::amp
