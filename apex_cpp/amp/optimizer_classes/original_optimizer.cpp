#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>

#include <algorithm>

namespace apex::amp::detail {

torch::optim::OptimizerOptions* OriginalOptimizer::find(size_t group) const {
  if (!handle || group >= handle->param_groups().size()) return nullptr;
  auto& found = handle->param_groups()[group];
  return found.has_options() ? &found.options() : nullptr;
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
  param.mutable_grad() = at::ones({1}, at::kFloat);
  sentinels_.push_back({param, param._version(), param.grad()._version()});
  return param;
}

bool OriginalOptimizer::Sentinel::was_touched() const {
  return param._version() != param_version || *param.const_data_ptr<float>() != 0.0f || !param.grad().defined() ||
         param.grad()._version() != grad_version;
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
              "add_param_group(), torch::save and torch::load.");
}

void OriginalOptimizer::check() {
  const bool used = std::any_of(sentinels_.begin(), sentinels_.end(), [](const Sentinel& each) { return each.was_touched(); });
  if (used) throw_original_used("step() or zero_grad() was called on");
  for (auto* options : options_) options->sync_with_handle();
  mirror_new_groups();
}

}  // namespace apex::amp::detail
