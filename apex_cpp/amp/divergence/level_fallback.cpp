#include <apex_cpp/amp/divergence/level_fallback.h>

#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/checkpoint/archive_tensors.h>
#include <apex_cpp/amp/checkpoint/optimizer_content.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/printing.h>
#include <apex_cpp/amp/tensors/op_tensors.h>

#include <utility>

namespace apex::amp {
namespace {

bool is_number(const at::Tensor& tensor) { return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()); }

// What is not trained may be a mask that holds Inf.
bool is_spoilt(const at::Tensor& tensor) {
  if (!is_number(tensor)) return false;
  return tensor.requires_grad() ? detail::has_nonfinite(tensor) : at::isnan(tensor).any().item<bool>();
}

// The first tensor of the model that no training comes back from; empty: there is none.
std::string spoilt_tensor(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    if (is_spoilt(item.value())) return "parameter '" + item.key() + "'";
  for (const auto& item : module.named_buffers())
    if (is_spoilt(item.value())) return "buffer '" + item.key() + "'";
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

std::string spoilt_part(const detail::SavedParts& parts) {
  for (const auto* model : parts.models)
    if (auto tensor = spoilt_tensor(*model); !tensor.empty()) return tensor + " of the model";
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
  TORCH_CHECK_VALUE(!reason.empty(), "LevelFallback::give_up needs a reason, and was given an empty one.");
  if (!diverged()) reason_ = reason;
}

bool LevelFallback::is_good(const detail::SavedParts& parts) {
  // So many skips in a row are no longer a loss scale that finds its place: LossScaler warns of them.
  if (diverged() || detector_.skipped_in_a_row() >= LossScaler::kSkipWarning) return false;
  const auto spoilt = spoilt_part(parts);
  if (!spoilt.empty()) reason_ = spoilt + " holds Inf or NaN after step " + std::to_string(step_);
  return spoilt.empty();
}

bool LevelFallback::climb() {
  if (!diverged() || further_.empty()) return false;
  climbs_.push_back({level_, further_.front(), step_, reason_});
  detail::print_line("training at " + level_.name() + " diverged: " + reason_ + ". It goes on at " + further_.front().name() +
                     " from the last checkpoint");
  level_ = further_.front();
  further_.erase(further_.begin());
  detector_ = DivergenceDetector(options_);
  reason_.clear();
  return true;
}

}  // namespace apex::amp
