#include <apex_cpp/amp/masters/fused_order.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <utility>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

FusedOrder::Tensors grads_of(const FusedOrder::Tensors& model_params, const FusedOrder::Tensors& native_params) {
  FusedOrder::Tensors grads;
  for (const auto* params : {&model_params, &native_params}) {
    for (const auto& param : *params) {
      if (param.grad().defined()) grads.push_back(param.grad());
    }
  }
  return grads;
}

}  // namespace

// visit(param, stash) for all params. Parameters may have come since the last pass, to the end of either list.
template <class Visit>
void FusedOrder::for_each(const Tensors& model_params, const Tensors& native_params, const Visit& visit) {
  model_stash_.resize(model_params.size());
  for (size_t i = 0; i < model_params.size(); ++i) visit(model_params[i], model_stash_[i]);
  native_stash_.resize(native_params.size());
  for (size_t i = 0; i < native_params.size(); ++i) visit(native_params[i], native_stash_[i]);
}

void FusedOrder::enter(const Tensors& model_params, const Tensors& native_params) {
  for_each(model_params, native_params,
           [](const at::Tensor& param, at::Tensor& stash) { stash = std::exchange(param.mutable_grad(), at::Tensor()); });
  if (!pending_) model_stash_.clear();  // a step has used them
}

void FusedOrder::exit(const Tensors& model_params, const Tensors& native_params, LossScaler& scaler) {
  const double incoming = scaler.loss_scale();
  const double out = pending_ ? std::min(incoming, scale_) : incoming;
  PassGrads grads;
  for_each(model_params, native_params,
           [&](const at::Tensor& param, at::Tensor& stash) { grads.add(param, std::exchange(stash, at::Tensor())); });
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
  if (of_stashed != 1 && !grads.older.empty()) {  // BWD-31
    kernels::multi_tensor_scale(unread_flag(grads.older.front()), grads.older, grads.older, of_stashed);
  }
  clip_ = 1.0;
  scale_ = out;
  pending_ = true;
}

void FusedOrder::abandon(const Tensors& model_params, const Tensors& native_params) {
  for_each(model_params, native_params,
           [](const at::Tensor& param, at::Tensor& stash) { param.mutable_grad() = std::exchange(stash, at::Tensor()); });
}

double FusedOrder::grad_norm(const Tensors& model_params, const Tensors& native_params) {
  if (!norm_.defined()) {
    const Tensors grads = grads_of(model_params, native_params);
    if (grads.empty()) return 0.0;
    norm_ = scaled_norm(grads, 1.0 / scale_, unread_flag(grads.front()));
  }
  return norm_.item<float>() * clip_;
}

void FusedOrder::reset() {
  model_stash_.clear();
  native_stash_.clear();
  norm_.reset();
  scale_ = clip_ = 1.0;
  pending_ = false;
}

}  // namespace apex::amp::detail
