#pragma once

#include "kernels/normalization/normalization.h"

#include <ATen/core/Tensor.h>

namespace apex::normalization::detail {

/// Rows and size of `input` for `normalized_shape`. `op` is the name of the function, for messages. `weight` and `bias` may be
/// undefined. Errors: RuntimeError for a shape, dtype or device that does not fit, ValueError for a negative eps.
kernels::NormShape check_arguments(const char* op, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   at::IntArrayRef normalized_shape, double eps);

/// Errors: RuntimeError unless `weight` has the dtype of `input`.
void check_same_dtype(const char* op, const at::Tensor& input, const at::Tensor& weight);
/// Errors: RuntimeError for float64 together with another dtype.
void check_mixed_dtypes(const char* op, const at::Tensor& input, const at::Tensor& weight);

/// The parameters of a normalisation, after checks and casts.
struct NormCall {
  kernels::NormKind kind;
  kernels::NormShape shape;
  double eps;
  bool memory_efficient;
};

/// Computes the output and records the call for autograd. `weight` and `bias` may be undefined.
at::Tensor normalize(const NormCall& call, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace apex::normalization::detail
