#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/normalization/normalization.h"

namespace apex::normalization::detail {

/// A normalisation whose arguments were checked and cast.
struct NormCall {
  kernels::NormKind kind;
  kernels::NormShape shape;
  double eps;
  bool memory_efficient;
};

/// The output, recorded by autograd. `weight` and `bias` may be undefined.
at::Tensor normalize(const NormCall& call, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace apex::normalization::detail
