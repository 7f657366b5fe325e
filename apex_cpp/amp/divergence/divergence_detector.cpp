#include <apex_cpp/amp/divergence/divergence_detector.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>

#include <apex_cpp/tables/csv.h>

namespace apex::amp {

DivergenceDetector::DivergenceDetector(const DivergenceOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.patience() > 0, "DivergenceOptions: patience must be at least 1 step, got ", options.patience(),
                    ".");
  TORCH_CHECK_VALUE(options.lowest_loss_scale() >= 0 && std::isfinite(options.lowest_loss_scale()),
                    "DivergenceOptions: lowest_loss_scale must be finite and not negative, got ", options.lowest_loss_scale(),
                    ".");
}

bool DivergenceDetector::update(int64_t step, double loss, const StepResult& result) {
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  std::ostringstream reason;
  if (!std::isfinite(loss) && !result.skipped) {
    reason << "the loss became " << csv_field(loss) << " at step " << step;
  } else if (skipped_in_a_row_ >= options_.patience()) {
    reason << skipped_in_a_row_ << " steps in a row overflowed up to step " << step;
  } else if (result.skipped && result.loss_scale_before <= options_.lowest_loss_scale()) {
    reason << "step " << step << " overflowed at a loss scale of " << result.loss_scale_before;
  }
  if (!diverged()) reason_ = reason.str();
  return diverged();
}

}  // namespace apex::amp
