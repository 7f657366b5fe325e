#include <apex_cpp/fp16_utils/loss_scaler.h>

#include <apex_cpp/fp16_utils/networks.h>

#include <algorithm>
#include <cmath>

namespace apex::fp16_utils {
namespace {

constexpr const char* kInstead = "amp::scale_loss, or amp::GradScaler";

void scaled_backward(const at::Tensor& loss, double scale, std::optional<bool> retain_graph) {
  loss.mul(scale).backward({}, retain_graph);
}

}  // namespace

LossScaler::LossScaler(double scale) : scale_(scale) { detail::warn_deprecated("LossScaler", kInstead); }

void LossScaler::backward(const at::Tensor& loss, std::optional<bool> retain_graph) const {
  scaled_backward(loss, scale_, retain_graph);
}

DynamicLossScaler::DynamicLossScaler(double init_scale, double scale_factor, int64_t scale_window)
    : scale_(init_scale), scale_factor_(scale_factor), scale_window_(scale_window) {
  TORCH_CHECK_VALUE(init_scale > 0, "DynamicLossScaler: init_scale must be positive, got ", init_scale);
  TORCH_CHECK_VALUE(scale_factor > 1, "DynamicLossScaler: scale_factor must be greater than 1, got ", scale_factor);
  TORCH_CHECK_VALUE(scale_window > 0, "DynamicLossScaler: scale_window must be positive, got ", scale_window);
  detail::warn_deprecated("DynamicLossScaler", kInstead);
}

bool DynamicLossScaler::has_inf_or_nan(const at::Tensor& tensor) {
  return !std::isfinite(tensor.sum(at::kFloat).item<float>());
}

bool DynamicLossScaler::has_overflow(const std::vector<at::Tensor>& params) const {
  return std::any_of(params.begin(), params.end(),
                     [](const at::Tensor& param) { return param.grad().defined() && has_inf_or_nan(param.grad()); });
}

void DynamicLossScaler::update_scale(bool overflow) {
  if (overflow) {
    scale_ = std::max(scale_ / scale_factor_, 1.0);
    last_overflow_ = updates_;
  } else if ((updates_ - last_overflow_) % scale_window_ == 0) {
    scale_ *= scale_factor_;
  }
  ++updates_;
}

void DynamicLossScaler::backward(const at::Tensor& loss, std::optional<bool> retain_graph) const {
  scaled_backward(loss, scale_, retain_graph);
}

}  // namespace apex::fp16_utils
