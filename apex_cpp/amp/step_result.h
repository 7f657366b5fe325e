#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp/statistics/tensor_statistics.h>

namespace apex::amp {

/// What became of an optimizer's most recent step.
struct StepResult {
  /// The step was skipped because a gradient overflowed: no parameter, master, moment or counter changed.
  bool skipped = false;
  /// Loss scale in force after the last `scale_loss` block of this optimizer (already lowered if that block overflowed).
  double loss_scale = 1.0;
  /// Total norm that the last `amp::clip_grad_norm_` found, before clipping; NaN if none was asked for.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  /// Name of the first parameter with a non-finite gradient when the step was skipped: of this optimizer, or of another one
  /// in the same block where this one's gradients are finite. Empty otherwise.
  std::string first_nonfinite;

  // Of a skipped step, as it was at the end of the block that overflowed.
  /// Values of that parameter's gradient which are Inf or NaN.
  int64_t inf_count = 0;
  int64_t nan_count = 0;
  /// How many gradients of the same optimizer have such values.
  int64_t nonfinite_grads = 0;
  /// What that gradient held. A 16-bit gradient whose parameter has a master is as the backward pass left it, and carries
  /// `loss_scale_before`; the others carry it where the optimizer unscales in its step (`materialize_master_grads(false)`), and
  /// were unscaled in place elsewhere. None where every gradient was finite, and for a sharded optimizer, of whose gradients
  /// each process has a part.
  std::optional<TensorStatistics> grad;
  /// With gradients that are reduced over processes: the ranks that had Inf or NaN among the gradients that were reduced
  /// together with this one; none if only the sum is not finite. With `parallel::share_overflow`: the ranks that overflowed.
  std::vector<int> nonfinite_ranks;
  /// The loss was Inf or NaN already, so that no loss scale helps.
  bool nonfinite_loss = false;
  /// Which loss overflowed; its scale in that block, and when the step was skipped.
  int64_t loss_id = 0;
  double loss_scale_before = 1.0;
  double loss_scale_after = 1.0;
};

}  // namespace apex::amp
