#include <apex_cpp/amp/master_params.h>

#include <ATen/ops/zeros.h>

#include <apex_cpp/amp/optimizer_stash.h>

#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::amp {
namespace {

std::vector<at::Tensor> params_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> params;
  for (const auto& group : optimizer.param_groups()) {
    params.insert(params.end(), group.params().begin(), group.params().end());
  }
  return params;
}

}  // namespace

std::vector<at::Tensor> master_params(torch::optim::Optimizer& optimizer) {
  detail::require_stash(optimizer, "master_params")->check_in_use();
  return params_of(optimizer);
}

double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm) {
  auto& stash = *detail::require_stash(optimizer, "clip_grad_norm_");
  stash.check_in_use();
  TORCH_CHECK_VALUE(max_norm > 0, "amp::clip_grad_norm_: max_norm must be positive, got ", max_norm);
  TORCH_CHECK(!stash.inside_backward(),
              "amp::clip_grad_norm_ was called inside a scale_loss block, where the gradients are still "
              "scaled. Call it after the block.");
  std::vector<at::Tensor> grads;
  for (const auto& param : params_of(optimizer)) {
    if (param.grad().defined()) grads.push_back(param.grad());
  }
  if (grads.empty()) return stash.result.grad_norm = 0.0;
  const at::Tensor found_inf = at::zeros({1}, grads.front().options().dtype(at::kInt));
  const at::Tensor total = std::get<0>(kernels::multi_tensor_l2norm(found_inf, grads, /*per_tensor=*/false));
  const double norm = total.item<float>();
  // torch::nn::utils::clip_grad_norm_'s coefficient.
  const double coefficient = max_norm / (norm + 1e-6);
  at::NoGradGuard no_grad;
  if (std::isfinite(norm) && coefficient < 1.0) kernels::multi_tensor_scale(found_inf, grads, grads, coefficient);
  return stash.result.grad_norm = norm;
}

StepResult step_result(torch::optim::Optimizer& optimizer) { return detail::require_stash(optimizer, "step_result")->result; }

}  // namespace apex::amp
