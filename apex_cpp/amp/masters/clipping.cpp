#include <apex_cpp/amp/masters/clipping.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

double clip_coefficient(double norm, double max_norm) {
  return std::isfinite(norm) ? std::min(1.0, max_norm / (norm + kClipEpsilon)) : 1.0;
}

double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm) {
  if (grads.empty()) return 0.0;
  const at::NoGradGuard no_grad;
  const at::Tensor flag = unread_flag(grads.front());
  const double norm = std::get<0>(kernels::multi_tensor_l2norm(flag, grads, /*per_tensor=*/false)).item<float>();
  const double coefficient = clip_coefficient(norm, max_norm);
  if (coefficient < 1.0) kernels::multi_tensor_scale(flag, grads, grads, coefficient);
  return norm;
}

}  // namespace apex::amp::detail
