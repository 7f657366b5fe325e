#include <apex_cpp/contrib/clip_grad.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/listed_once.h>
#include <apex_cpp/amp/tensors/low_precision.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::contrib {
namespace {

std::vector<at::Tensor> grads_of(const std::vector<at::Tensor>& parameters) {
  const auto each_once = amp::detail::listed_once(parameters);
  amp::detail::part_grads(each_once);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : each_once) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "clip_grad_norm_: the gradient of a parameter of shape ",
                      parameter.sizes(), " has layout ", grad.layout(),
                      ". Make the embedding dense (sparse=false), or leave the parameter out.");
    if (grad.numel() > 0) grads.push_back(grad.detach());
  }
  return grads;
}

bool have_kernels(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto has_kernel = [](const at::Tensor& grad) {
    return amp::detail::is_amp_float(grad.scalar_type()) && grad.is_non_overlapping_and_dense();
  };
  return (norm_type == 2 || std::isinf(norm_type)) && norm_type > 0 && std::all_of(grads.begin(), grads.end(), has_kernel);
}

at::Tensor norm_by_kernels(const std::vector<at::Tensor>& grads, double norm_type, const at::Tensor& flag) {
  const auto norms = norm_type == 2 ? kernels::multi_tensor_l2norm : kernels::multi_tensor_maxnorm;
  return std::get<0>(norms(flag, grads, /*per_tensor=*/false));
}

// Powers and sums in float64: in float16 they overflow, and a float32 sum of ones ends at 2^24.
at::Tensor norm64(const at::Tensor& grad, double norm_type) {
  const auto dtype = grad.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::linalg_vector_norm(grad, norm_type, /*dim=*/std::nullopt, /*keepdim=*/false, dtype);
}

at::Tensor norm_by_operators(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto is_double = [](const at::Tensor& grad) { return at::toRealValueType(grad.scalar_type()) == at::kDouble; };
  const auto dtype = std::any_of(grads.begin(), grads.end(), is_double) ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : grads) norms.push_back(norm64(grad, norm_type).to(grads.front().device()));
  return norm64(at::stack(norms), norm_type).to(dtype).reshape({1});
}

// A coefficient that is rounded to 16 bits may become 0, while the product does not.
void scale(at::Tensor grad, const at::Tensor& coefficient) {
  const auto dtype = c10::promoteTypes(grad.scalar_type(), coefficient.scalar_type());
  at::mul_out(grad, grad.to(dtype), coefficient.to(grad.device()).squeeze(0));
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm is ", max_norm, ". It must be a number, and not negative.");
  TORCH_CHECK_VALUE(!std::isnan(norm_type) && norm_type != 0, "clip_grad_norm_: norm_type is ", norm_type,
                    ". Use 2, infinity or another order of a norm; 0 would count values, and scaling does not change a count.");
  const at::NoGradGuard no_grad;
  const auto grads = grads_of(parameters);
  if (grads.empty()) return at::zeros({});
  const bool fused = have_kernels(grads, norm_type);
  const at::Tensor flag = amp::detail::unread_flag(grads.front());
  const at::Tensor norm = fused ? norm_by_kernels(grads, norm_type, flag) : norm_by_operators(grads, norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm.item<double>()), "clip_grad_norm_: the total norm of order ", norm_type,
              " of the gradients is ", norm.item<double>(),
              ", so they cannot be clipped. Skip the step, or pass error_if_nonfinite=false to scale them all the same.");
  const at::Tensor coefficient = norm.add(amp::detail::kClipEpsilon).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  if (fused) {
    kernels::multi_tensor_unscale(flag, grads, grads, coefficient);
  } else {
    for (const at::Tensor& grad : grads) scale(grad, coefficient);
  }
  return norm.squeeze(0);
}

at::Tensor clip_grad_norm_(const at::Tensor& parameter, double max_norm, double norm_type, bool error_if_nonfinite) {
  return clip_grad_norm_(std::vector<at::Tensor>{parameter}, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace apex::contrib
