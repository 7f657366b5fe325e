#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>

#include <apex_cpp/amp/masters/step_result.h>

namespace apex::amp {

/// When training counts as diverged.
struct DivergenceOptions {
  /// So many steps skipped in a row. A loss scale that was too high is halved by each of them.
  TORCH_ARG(int, patience) = 50;
  /// A step skipped at this loss scale or a lower one. (fairseq: --min-loss-scale.)
  TORCH_ARG(double, lowest_loss_scale) = 1e-4;
};

/// Tells when going on is pointless, from the loss and what became of each step. A loss that is Inf or NaN and whose step was
/// taken has ruined the parameters; one that was skipped has not, but if step after step is skipped, or steps are skipped at
/// hardly any loss scale, the scale is not what is wrong.
class DivergenceDetector {
 public:
  /// Errors: ValueError for a patience below 1, and a lowest_loss_scale that is negative or not finite.
  explicit DivergenceDetector(const DivergenceOptions& options = {});

  /// Looks at one step, `step` by the program's own count. `loss`: unscaled; of several processes the same on each, such as
  /// the mean. True once training has diverged.
  bool update(int64_t step, double loss, const StepResult& result);

  bool diverged() const { return !reason_.empty(); }
  /// Why, in words: "the loss became nan at step 7". Empty while all is well.
  const std::string& reason() const { return reason_; }
  /// Steps skipped since the last that was taken.
  int skipped_in_a_row() const { return skipped_in_a_row_; }

 private:
  DivergenceOptions options_;
  int skipped_in_a_row_ = 0;
  std::string reason_;
};

}  // namespace apex::amp
