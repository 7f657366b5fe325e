#pragma once

#include <ATen/core/Tensor.h>

namespace apex::amp::detail {

/// A gradient in the memory order of `like`, copied if need be: kernels walk memory linearly.
at::Tensor in_layout_of(const at::Tensor& grad, const at::Tensor& like);

}  // namespace apex::amp::detail
