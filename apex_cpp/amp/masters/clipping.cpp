#include <apex_cpp/amp/masters/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

// That of torch::nn::utils::clip_grad_norm_, whose sums have an order of their own.
at::Tensor torchs_norm(const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> norms = at::_foreach_norm(grads, 2.0);
  for (at::Tensor& norm : norms) norm = norm.to(grads.front().device(), /*non_blocking=*/true);
  return norms.size() == 1 ? norms.front() : at::norm(at::stack(norms), 2.0);
}

bool are_float32(const std::vector<at::Tensor>& grads) {
  return std::all_of(grads.begin(), grads.end(), [](const at::Tensor& grad) { return grad.scalar_type() == at::kFloat; });
}

}  // namespace

double clip_coefficient(double norm, double max_norm) {
  if (!std::isfinite(norm)) return 1.0;
  return std::min(1.0f, static_cast<float>(max_norm) / (static_cast<float>(norm) + static_cast<float>(kClipEpsilon)));
}

double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm) {
  if (grads.empty()) return 0.0;
  const at::NoGradGuard no_grad;
  const at::Tensor flag = unread_flag(grads.front());
  const at::Tensor total =
      are_float32(grads) ? torchs_norm(grads) : std::get<0>(kernels::multi_tensor_l2norm(flag, grads, /*per_tensor=*/false));
  const double norm = total.item<float>();
  const double coefficient = clip_coefficient(norm, max_norm);
  if (coefficient < 1.0) kernels::multi_tensor_scale(flag, grads, grads, coefficient);
  return norm;
}

}  // namespace apex::amp::detail
