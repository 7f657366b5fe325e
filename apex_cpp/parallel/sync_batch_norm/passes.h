#pragma once

#include <ATen/core/Tensor.h>

// The passes over a batch [N, C, *] that touch every value. Per channel: tensors of shape [C], in the type of arithmetic.
namespace apex::parallel::detail {

/// `input` as one of the layouts that LibTorch's batch norm kernels take without detours: contiguous, or channels-last.
at::Tensor in_kernel_layout(const at::Tensor& input);

/// What is to become of a tensor's values: (value - mean) * scale.
struct Centring {
  at::Tensor mean, scale;
};
/// `a` and `b`, of one shape and layout, centred and added up, in their dtype.
at::Tensor sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b);

/// Sums over the batch, per channel, in float64.
struct GradSums {
  at::Tensor grad;            // of grad
  at::Tensor grad_deviation;  // of grad * (input - mean)
};
/// `grad` in the layout of `input`. Zeros for an empty batch.
GradSums sums_of_grad(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std);

}  // namespace apex::parallel::detail
