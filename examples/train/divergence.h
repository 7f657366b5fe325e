#pragma once

#include <cmath>
#include <string>

#include "epoch.h"

namespace train {

/// Tells when going on is pointless. A non-finite loss whose step was taken has ruined the parameters; one that was skipped has
/// not, but if step after step is skipped the loss scale is not what is wrong.
class Divergence {
 public:
  static constexpr int kPatience = 50;

  /// Looks at one step; true once the run has diverged.
  bool sees(const StepLog& log) {
    skipped_in_a_row_ = log.skipped ? skipped_in_a_row_ + 1 : 0;
    if (!std::isfinite(log.loss) && !log.skipped) {
      reason_ = "the loss became " + std::to_string(log.loss) + " at step " + std::to_string(log.step + 1);
    } else if (skipped_in_a_row_ == kPatience) {
      reason_ = std::to_string(kPatience) + " steps in a row overflowed, up to step " + std::to_string(log.step + 1);
    }
    return !reason_.empty();
  }

  /// Why, in words; empty while all is well.
  const std::string& reason() const { return reason_; }

 private:
  int skipped_in_a_row_ = 0;
  std::string reason_;
};

}  // namespace train
