#include <apex_cpp/amp/masters/fused_order.h>

#include <apex_cpp/amp/masters/clipping.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <utility>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

void FusedOrder::enter() {
  for (TrainedParam* each : table_.all()) {
    const at::Tensor grad = std::exchange(each->param.mutable_grad(), at::Tensor());
    const bool used = each->has_master() && !pending_;
    each->aside = used ? at::Tensor() : grad;
  }
}

void FusedOrder::exit(LossScaler& scaler) {
  const double incoming = scaler.loss_scale();
  const double out = pending_ ? std::min(incoming, scale_) : incoming;
  PassGrads grads;
  for (TrainedParam* each : table_.all()) grads.add(each->param, std::exchange(each->aside, at::Tensor()));
  norm_.reset();
  const bool all_fresh = grads.older.empty() && grads.again.empty();
  if (incoming != out) {
    scaler.scale(grads.fresh, grads.fresh, out / incoming);
  } else if (const at::Tensor norm = scaler.check(grads.fresh); all_fresh) {
    norm_ = norm;
  }
  // Clipping is about the gradients of its time: it goes into them now, and not into those that came since.
  const double of_stashed = clip_ * out / scale_;
  scaler.axpby(grads.again, grads.stashed, grads.again, out / incoming, of_stashed);
  scale_all(grads.older, of_stashed);  // BWD-31
  clip_ = 1.0;
  scale_ = out;
  pending_ = true;
  for (TrainedParam* each : table_.all()) each->mark = GradMark(each->param.grad());
}

void FusedOrder::abandon() {
  for (TrainedParam* each : table_.all()) each->param.mutable_grad() = std::exchange(each->aside, at::Tensor());
}

double FusedOrder::grad_norm() {
  if (!norm_.defined()) {
    std::vector<at::Tensor> grads;
    for (const TrainedParam* each : table_.all()) {
      if (each->param.grad().defined()) grads.push_back(each->param.grad());
    }
    if (grads.empty()) return 0.0;
    norm_ = scaled_norm(grads, 1.0 / scale_, unread_flag(grads.front()));
  }
  return norm_.item<float>() * clip_;
}

double FusedOrder::clip(double max_norm) {
  const double norm = grad_norm();
  clip_ *= clip_coefficient(norm, max_norm);
  return norm;
}

void FusedOrder::unscale() {
  std::vector<at::Tensor> scaled, unscaled;
  for (TrainedParam* each : table_.all()) {
    const at::Tensor& grad = each->param.grad();
    if (!grad.defined()) continue;
    if (each->has_master()) each->master.mutable_grad() = each->new_master_grad();
    unscaled.push_back(each->stepped().grad());
    scaled.push_back(in_layout_of(grad, unscaled.back()));
  }
  if (!scaled.empty()) kernels::multi_tensor_scale(unread_flag(scaled.front()), scaled, unscaled, grad_scale());
  reset();
}

void FusedOrder::reset() {
  norm_.reset();
  scale_ = clip_ = 1.0;
  pending_ = false;
}

}  // namespace apex::amp::detail
