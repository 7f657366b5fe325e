#include <apex_cpp/amp/divergence/level_fallback.h>

#include <ATen/ops/isnan.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/checkpoint/archive_tensors.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/printing.h>

#include <map>
#include <utility>

namespace apex::amp {
namespace {

// So many skips in a row are no longer a loss scale that finds its place: LossScaler warns of them.
constexpr int kManySkips = 10;

bool is_of_bfloat16(const OptLevel& level) {
  const auto& type = level.overrides().cast_model_type();
  return type && *type == at::kBFloat16;
}

std::vector<std::string> names_above(const OptLevel& level) {
  static const std::map<std::string, std::vector<std::string>> kAbove{
      {"O3", {"O2", "O1", "O0"}}, {"O2", {"O1", "O0"}}, {"O1", {"O0"}}, {"O5", {"O4", "O0"}}, {"O4", {"O0"}}};
  static const std::map<std::string, std::vector<std::string>> kAboveOfBfloat16{{"O3", {"O5", "O4", "O0"}},
                                                                                {"O2", {"O4", "O0"}}};
  const auto& table = is_of_bfloat16(level) && kAboveOfBfloat16.count(level.name()) ? kAboveOfBfloat16 : kAbove;
  const auto found = table.find(level.name());
  return found == table.end() ? std::vector<std::string>{} : found->second;
}

// The level of that name, with what `from` says that no level does.
OptLevel with_overrides(const std::string& name, const opt_levels::InitializeOptions& from) {
  std::string yaml = "opt_level: " + name + "\n";
  if (from.num_losses()) yaml += "num_losses: " + std::to_string(*from.num_losses()) + "\n";
  if (from.verbosity()) yaml += "verbosity: " + std::to_string(*from.verbosity()) + "\n";
  if (from.allow_banned()) yaml += std::string("allow_banned: ") + (*from.allow_banned() ? "true" : "false") + "\n";
  return OptLevel::from_yaml_string(yaml, "<the level above>");
}

bool is_number(const at::Tensor& tensor) { return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()); }

// The first tensor of the model that no training comes back from; empty: there is none.
std::string spoilt_tensor(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    if (is_number(item.value()) && detail::has_nonfinite(item.value())) return "parameter '" + item.key() + "'";
  for (const auto& item : module.named_buffers())
    if (is_number(item.value()) && at::isnan(item.value()).any().item<bool>()) return "buffer '" + item.key() + "'";
  return {};
}

bool has_nonfinite(const detail::ArchiveTree& tree) {
  for (const auto& [key, value] : tree.values)
    if (value.isTensor() && is_number(value.toTensor()) && detail::has_nonfinite(value.toTensor())) return true;
  for (const auto& [key, child] : tree.children)
    if (has_nonfinite(child)) return true;
  return false;
}

std::string spoilt_part(const detail::SavedParts& parts) {
  for (const auto* model : parts.models)
    if (auto tensor = spoilt_tensor(*model); !tensor.empty()) return tensor + " of the model";
  for (const auto* optimizer : parts.optimizers) {
    if (dynamic_cast<const ShardedOptimizer*>(optimizer)) continue;
    const auto state = detail::tree_of([&](torch::serialize::OutputArchive& archive) { optimizer->save(archive); });
    if (has_nonfinite(state)) return "the state of an optimizer";
  }
  return {};
}

}  // namespace

std::vector<OptLevel> levels_above(const OptLevel& level) {
  std::vector<OptLevel> levels;
  if (!level.overrides().enabled().value_or(true)) return levels;
  for (const auto& name : names_above(level)) levels.push_back(with_overrides(name, level.overrides()));
  return levels;
}

LevelFallback::LevelFallback(OptLevel level, std::vector<OptLevel> further, const DivergenceOptions& options)
    : level_(std::move(level)), further_(std::move(further)), options_(options), detector_(options) {}

bool LevelFallback::update(int64_t step, double loss, const StepResult& result) {
  step_ = step;
  if (detector_.update(step, loss, result) && !diverged()) reason_ = detector_.reason();
  return diverged();
}

bool LevelFallback::is_good(const detail::SavedParts& parts) {
  if (diverged() || detector_.skipped_in_a_row() >= kManySkips) return false;
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
