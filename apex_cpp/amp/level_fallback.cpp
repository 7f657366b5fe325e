#include <apex_cpp/amp/level_fallback.h>

#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/checkpoint/optimizer_content.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/files/csv.h>

#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>
#include <utility>

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

namespace {

bool is_number(const at::Tensor& tensor) { return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()); }

// A tensor that is not trained may be a mask with Inf, so only NaN counts there.
bool is_corrupt(const at::Tensor& tensor) {
  if (!is_number(tensor)) return false;
  return tensor.requires_grad() ? detail::has_nonfinite(tensor) : at::isnan(tensor).any().item<bool>();
}

// The first tensor of the model with a value from which training cannot recover; empty if there is none.
std::string corrupt_tensor(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    if (is_corrupt(item.value())) return "parameter '" + item.key() + "'";
  for (const auto& item : module.named_buffers())
    if (is_corrupt(item.value())) return "buffer '" + item.key() + "'";
  return {};
}

bool has_nonfinite(const c10::IValue& value) {
  bool found = false;
  detail::for_each_tensor(
      value, [&](const at::Tensor& tensor) { found = found || (is_number(tensor) && detail::has_nonfinite(tensor)); });
  return found;
}

bool has_nonfinite(const detail::ArchiveTree& tree) {
  for (const auto& [key, value] : tree.values)
    if (has_nonfinite(value)) return true;
  for (const auto& [key, child] : tree.children)
    if (has_nonfinite(child)) return true;
  return false;
}

std::string corrupt_part(const detail::SavedParts& parts) {
  for (const auto* model : parts.models)
    if (auto tensor = corrupt_tensor(*model); !tensor.empty()) return tensor + " of the model";
  for (const auto* optimizer : parts.optimizers) {
    if (dynamic_cast<const ShardedOptimizer*>(optimizer)) continue;
    if (has_nonfinite(detail::saved_state_of(*optimizer))) return "the state of an optimizer";
  }
  return {};
}

}  // namespace

LevelFallback::LevelFallback(OptLevel level, std::vector<OptLevel> further, const DivergenceOptions& options)
    : level_(std::move(level)), further_(std::move(further)), options_(options), detector_(options) {}

bool LevelFallback::update(int64_t step, double loss, const StepResult& result) {
  step_ = step;
  if (detector_.update(step, loss, result) && !diverged()) reason_ = detector_.reason();
  return diverged();
}

void LevelFallback::give_up(const std::string& reason) {
  TORCH_CHECK_VALUE(!reason.empty(), "LevelFallback::give_up was given an empty reason.");
  if (!diverged()) reason_ = reason;
}

bool LevelFallback::is_good(const detail::SavedParts& parts) {
  // A loss scale that merely settles needs fewer skipped steps in a row. LossScaler warns at the same number.
  if (diverged() || detector_.skipped_in_a_row() >= LossScaler::kSkipWarning) return false;
  const auto corrupt = corrupt_part(parts);
  if (!corrupt.empty()) reason_ = corrupt + " holds Inf or NaN after step " + std::to_string(step_);
  return corrupt.empty();
}

bool LevelFallback::climb() {
  if (!diverged() || further_.empty()) return false;
  climbs_.push_back({level_, further_.front(), step_, reason_});
  detail::print_line("training at " + level_.name() + " diverged: " + reason_ + ". Training continues at " +
                     further_.front().name() + " from the last checkpoint");
  level_ = further_.front();
  further_.erase(further_.begin());
  detector_ = DivergenceDetector(options_);
  reason_.clear();
  return true;
}

}  // namespace apex::amp
