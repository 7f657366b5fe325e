// Gradients as the next step will see them: in the fused order, and clipped.
#include <apex_cpp/amp/masters/optimizer_stash.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

StepsMasters* OptimizerStash::fused() const { return dynamic_cast<StepsMasters*>(left_behind_->handle); }

bool OptimizerStash::in_fused_order() const {
  if (materialized_ || !session_->has_masters()) return false;
  const StepsMasters* optimizer = fused();
  return optimizer != nullptr && !optimizer->materialize_master_grads();
}

void OptimizerStash::materialize_grads() {
  // Between delayed passes the model holds the gradients of a part of them, at another scale.
  if (!fused_order_.pending() || delayed_.waiting()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> scaled, unscaled;
  for (size_t i = 0; i < model_params_.size(); ++i) {
    if (!model_params_[i].grad().defined()) continue;
    at::Tensor& master_grad = masters_[i].mutable_grad();
    master_grad = new_master_grad(i);
    scaled.push_back(in_layout_of(model_params_[i].grad(), master_grad));
    unscaled.push_back(master_grad);
  }
  for (const auto& param : native_params_) {
    if (!param.grad().defined()) continue;
    scaled.push_back(param.grad());
    unscaled.push_back(param.grad());
  }
  if (!scaled.empty()) {
    kernels::multi_tensor_scale(unread_flag(scaled.front()), scaled, unscaled, fused_order_.grad_scale());
  }
  remember_model_grads();
  fused_order_.reset();
  materialized_ = true;
}

std::vector<at::Tensor> OptimizerStash::grads_of_groups() {
  std::vector<at::Tensor> grads;
  for (const auto& group : handle()->param_groups()) {
    for (const auto& param : group.params()) {
      if (param.grad().defined()) grads.push_back(param.grad());
    }
  }
  return grads;
}

double OptimizerStash::clip_grad_norm(double max_norm) {
  // torch::nn::utils::clip_grad_norm_'s coefficient.
  const auto coefficient = [&](double norm) { return std::isfinite(norm) ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0; };
  if (fused_order_.pending()) {
    const double norm = fused_order_.grad_norm(model_params_, native_params_);
    fused_order_.clip_by(coefficient(norm));
    return result.grad_norm = norm;
  }
  const std::vector<at::Tensor> grads = grads_of_groups();
  if (grads.empty()) return result.grad_norm = 0.0;
  const at::NoGradGuard no_grad;
  const at::Tensor flag = unread_flag(grads.front());
  const double norm = std::get<0>(kernels::multi_tensor_l2norm(flag, grads, /*per_tensor=*/false)).item<float>();
  if (coefficient(norm) < 1.0) kernels::multi_tensor_scale(flag, grads, grads, coefficient(norm));
  return result.grad_norm = norm;
}

}  // namespace apex::amp::detail
