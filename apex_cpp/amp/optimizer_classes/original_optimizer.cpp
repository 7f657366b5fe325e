#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>

#include <algorithm>

namespace apex::amp::detail {
namespace {

// So large that every limit on a value or a norm changes it, and small enough for its square in float32.
constexpr float kSentinelGrad = 1e18f;

}  // namespace

bool OriginalOptimizer::is_lost(const torch::optim::OptimizerOptions* target) const {
  const auto& groups = handle->param_groups();
  return std::none_of(groups.begin(), groups.end(), [&](const torch::optim::OptimizerParamGroup& group) {
    return group.has_options() && &group.options() == target;
  });
}

torch::optim::OptimizerOptions* OriginalOptimizer::find(size_t group) const {
  if (!handle || group >= targets_.size()) return nullptr;
  std::vector<torch::optim::OptimizerOptions*> untied;
  for (auto& each : handle->param_groups()) {
    auto* options = each.has_options() ? &each.options() : nullptr;
    if (!options) continue;
    if (options == targets_[group]) return options;
    if (std::find(targets_.begin(), targets_.end(), options) == targets_.end()) untied.push_back(options);
  }
  const auto place = targets_.begin() + static_cast<int64_t>(group);
  const auto lost_before = std::count_if(targets_.begin(), place, [&](const auto* each) { return is_lost(each); });
  return static_cast<size_t>(lost_before) < untied.size() ? untied[static_cast<size_t>(lost_before)] : nullptr;
}

void OriginalOptimizer::forget_lost_groups() {
  if (!handle) return;
  for (auto& each : targets_) {
    if (is_lost(each)) each = nullptr;
  }
}

void OriginalOptimizer::add(OriginalOptions* options, size_t group) {
  const torch::optim::OptimizerOptions* in_handle = &target(group);
  targets_.resize(std::max(targets_.size(), group + 1));
  options_.push_back(options);
  targets_[group] = in_handle;
}

torch::optim::OptimizerOptions& OriginalOptimizer::target(size_t group) const {
  TORCH_CHECK(handle,
              "The optimizer that took this one's parameters (the handle of amp::initialize, or LARC) is gone, and its "
              "options with it.");
  return handle->param_groups().at(group).options();
}

void OriginalOptimizer::remove(OriginalOptions* options) {
  options_.erase(std::remove(options_.begin(), options_.end(), options), options_.end());
}

// Always float32, whatever torch's default dtype.
at::Tensor OriginalOptimizer::make_sentinel() {
  at::Tensor param = at::zeros({1}, at::kFloat).requires_grad_();
  param.mutable_grad() = at::full({1}, kSentinelGrad, at::kFloat);
  sentinels_.push_back({param, param._version(), param.grad()._version()});
  return param;
}

bool OriginalOptimizer::Sentinel::was_touched() const {
  return param._version() != param_version || *param.const_data_ptr<float>() != 0.0f || !param.grad().defined() ||
         param.grad()._version() != grad_version || *param.grad().const_data_ptr<float>() != kSentinelGrad;
}

// `options_` is empty once the original is destroyed.
void OriginalOptimizer::mirror_new_groups() {
  if (options_.empty() || !handle) return;
  for (size_t shown = options_.size(); shown < handle->param_groups().size(); ++shown) mirror_group(shown);
}

void throw_original_used(const char* used) {
  TORCH_CHECK(false, used,
              " the optimizer that was passed to amp::initialize or LARC. Its parameters and state have moved to the returned "
              "handle, so that this one trains, clears and saves nothing. Use the handle for step(), zero_grad(), "
              "clipping, add_param_group(), torch::save and torch::load.");
}

bool is_original(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return group.has_options() && dynamic_cast<const OriginalOptions*>(&group.options());
  });
}

void check_not_original(const torch::optim::Optimizer& optimizer, const char* used) {
  if (is_original(optimizer)) throw_original_used(used);
}

void OriginalOptimizer::check() {
  const bool used = std::any_of(sentinels_.begin(), sentinels_.end(), [](const Sentinel& each) { return each.was_touched(); });
  if (used) throw_original_used("step(), zero_grad() or clipping of gradients was called on");
  forget_lost_groups();
  for (auto* options : options_) options->sync_with_handle();
  mirror_new_groups();
}

}  // namespace apex::amp::detail
