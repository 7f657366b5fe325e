#include <apex_cpp/amp/loss_scaler.h>

#include <ATen/ops/zeros.h>
#include <apex_cpp/amp/grad_kernels.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/multi_tensor.h"

namespace apex::amp {
namespace {

bool same_tensors(at::TensorList a, at::TensorList b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

}  // namespace

LossScaler::LossScaler(LossScale loss_scale, std::optional<double> min_loss_scale, double max_loss_scale)
    : dynamic_(loss_scale.dynamic),
      scale_(loss_scale.dynamic ? std::min(max_loss_scale, kInitScale) : loss_scale.value),
      min_loss_scale_(min_loss_scale.value_or(0.0)),
      max_loss_scale_(max_loss_scale) {}

void LossScaler::set_scale_window(int64_t updates) {
  TORCH_CHECK_VALUE(updates > 0, "LossScaler: scale_window must be at least 1 update, got ", updates);
  scale_window_ = updates;
}

void LossScaler::restore(double loss_scale, int64_t unskipped) {
  TORCH_CHECK_VALUE(std::isfinite(loss_scale) && loss_scale > 0, "LossScaler: a loss scale must be finite and positive, got ",
                    loss_scale);
  TORCH_CHECK_VALUE(unskipped >= 0, "LossScaler: the count of clean updates must not be negative, got ", unskipped);
  scale_ = loss_scale;
  unskipped_ = unskipped;
}

void LossScaler::clear_overflow_state() {
  if (found_inf_.defined()) found_inf_.zero_();
}

const at::Tensor& LossScaler::found_inf(at::TensorList grads) {
  // On the device of the first gradients seen: the current device may be another one.
  if (!found_inf_.defined()) found_inf_ = at::zeros({1}, grads[0].options().dtype(at::kInt));
  return found_inf_;
}

void LossScaler::unscale(at::TensorList model_grads, at::TensorList master_grads) {
  if (!dynamic_ && scale_ == 1.0 && same_tensors(model_grads, master_grads)) return;
  scale(model_grads, master_grads, 1.0 / scale_);
}

void LossScaler::unscale_with_stashed(at::TensorList model_grads, at::TensorList stashed_grads, at::TensorList master_grads) {
  axpby(model_grads, stashed_grads, master_grads, 1.0 / scale_, 1.0);
}

void LossScaler::scale(at::TensorList in, at::TensorList out, double factor) {
  if (in.empty()) return;
  kernels::multi_tensor_scale(found_inf(in), in, out, factor);
  check_products(out, factor);
}

void LossScaler::axpby(at::TensorList x, at::TensorList y, at::TensorList out, double a, double b) {
  if (x.empty()) return;
  kernels::multi_tensor_axpby(found_inf(x), x, y, out, a, b, kernels::CheckArg::x);
  check_products(out, a);
}

// The kernels look at what they read. Only a factor above 1, of a loss scale below 1, can make more of it than fits.
void LossScaler::check_products(at::TensorList products, double factor) {
  if (dynamic_ && factor > 1) kernels::multi_tensor_maxnorm(found_inf(products), products, /*per_tensor=*/false);
}

at::Tensor LossScaler::check(at::TensorList grads) {
  if (grads.empty() || !dynamic_) return {};
  return detail::scaled_norm(grads, 1.0 / scale_, found_inf(grads));
}

double LossScaler::backed_off() const {
  const double halved = scale_ / kScaleFactor;
  const double scale = min_loss_scale_ > 0 ? std::max(min_loss_scale_, halved) : halved;
  TORCH_CHECK(scale >= std::numeric_limits<float>::min(), "Gradient overflow at every loss scale down to ", scale_,
              ": the gradients are Inf or NaN whatever the scale. Look for a loss or an activation that is not finite; "
              "set min_loss_scale to keep a floor under the scale.");
  return scale;
}

bool LossScaler::update_scale() {
  const bool overflow = dynamic_ && found_inf_.defined() && found_inf_.item<int>() != 0;
  if (overflow) {
    scale_ = backed_off();
    unskipped_ = 0;
    return true;
  }
  ++unskipped_;
  if (dynamic_ && unskipped_ == scale_window_) {
    scale_ = std::min(max_loss_scale_, scale_ * kScaleFactor);
    unskipped_ = 0;
  }
  return false;
}

}  // namespace apex::amp
