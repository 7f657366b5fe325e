#include <apex_cpp/amp/float8/history.h>

#include "kernels/float8/float8.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {
namespace {

at::Tensor element(const at::Tensor& row, Float8Role role) { return row.narrow(0, static_cast<int64_t>(role), 1); }

// Backward passes of several threads may have a weight in common. Writes to the magnitudes of all histories take turns.
std::mutex& of_magnitudes() {
  static std::mutex instance;
  return instance;
}

void record(const at::Tensor& row, Float8Role role, const at::Tensor& largest) {
  at::Tensor recorded = element(row, role);
  const at::Tensor here = largest.to(row.device());
  const std::lock_guard<std::mutex> lock(of_magnitudes());
  at::maximum_out(recorded, recorded, here);
}

}  // namespace

kernels::Float8 kernels_format(Float8Format format) {
  return format == Float8Format::e5m2 ? kernels::Float8::e5m2 : kernels::Float8::e4m3;
}

kernels::Float8Values round_delayed(const at::Tensor& operand, Float8Role role, Float8Format format,
                                    const Float8Delays& delays) {
  const auto rounded =
      kernels::round_to_float8_with(operand, kernels_format(format), element(delays.scales, role).to(operand.device()));
  if (delays.largest.defined()) record(delays.largest, role, rounded.largest);
  return rounded.rounded;
}

Float8History::Float8History(std::vector<std::string> parameters, c10::Device device, Float8Format gradients)
    : parameters_(std::move(parameters)), gradients_(gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) rows_.emplace(parameters_[i], i);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto count = static_cast<int64_t>(parameters_.size());
  history_ = at::zeros({kPasses, count, kFloat8Roles}, options);
  largest_ = at::zeros({count, kFloat8Roles}, options);
  largest_of_ = largest_.unbind();
  scales_of_ = at::zeros_like(largest_).unbind();
}

Float8Delays Float8History::of(const std::string& parameter) const {
  const auto row = rows_.find(parameter);
  if (row == rows_.end()) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  return {scales_of_[row->second], at::GradMode::is_enabled() ? largest_of_[row->second] : at::Tensor()};
}

void Float8History::end_pass(bool skipped) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::lock_guard<std::mutex> lock_of_magnitudes(of_magnitudes());
  if (!skipped) {
    history_[passes_++ % kPasses].copy_(at::where(at::isfinite(largest_), largest_, at::zeros_like(largest_)));
    update_scales();
  }
  largest_.zero_();
}

// New tensors: graphs keep the scales of their forward pass.
void Float8History::update_scales() {
  const at::Tensor largest =
      passes_ == 0 ? at::zeros_like(largest_) : history_.narrow(0, 0, std::min(passes_, kPasses)).amax(0);
  const auto gradient = static_cast<int64_t>(Float8Role::gradient);
  const at::Tensor scales = at::cat({kernels::float8_scales(largest.narrow(1, 0, gradient), kernels::Float8::e4m3),
                                     kernels::float8_scales(largest.narrow(1, gradient, 1), kernels_format(gradients_))},
                                    1);
  scales_of_ = at::where(largest.gt(0), scales, at::zeros_like(scales)).unbind();
}

at::Tensor Float8History::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (passes_ <= kPasses) return history_.narrow(0, 0, passes_).clone();
  return history_.roll(-(passes_ % kPasses), 0);
}

void Float8History::check(const at::Tensor& state, size_t count) {
  TORCH_INTERNAL_ASSERT(state.defined());
  TORCH_CHECK_VALUE(state.scalar_type() == at::kFloat && state.dim() == 3 && state.size(0) <= kPasses &&
                        state.size(1) == static_cast<int64_t>(count) && state.size(2) == kFloat8Roles,
                    "the FP8 history is ", state.scalar_type(), " of the shape ", state.sizes(),
                    ", expected Float of [passes, ", count, ", ", kFloat8Roles, "] with at most ", kPasses,
                    " passes. Load it into a model with the weights of the saved one.");
  TORCH_CHECK_VALUE(at::logical_and(at::isfinite(state), state.ge(0)).all().item<bool>(),
                    "the FP8 history has magnitudes that are negative, Inf or NaN.");
}

void Float8History::load(const at::Tensor& state) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::lock_guard<std::mutex> lock_of_magnitudes(of_magnitudes());
  history_.narrow(0, 0, state.size(0)).copy_(state);
  passes_ = state.size(0);
  update_scales();
  largest_.zero_();
}

}  // namespace apex::amp::detail
