#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace apex::amp::detail {

enum class Float16Grads { refused, allowed };

/// Multiplies all gradients of `optimizer` by `inv_scale` (float32 scalar) in place, and looks for Inf and NaN. Answers one
/// float32 scalar for every device with gradients: 1 if one there was not finite, else 0. No synchronisation.
/// Sparse gradients in float16 are coalesced first, since the sum over equal indices may overflow.
/// Errors, before anything is changed: ValueError for a float16 gradient where those are refused.
std::vector<at::Tensor> unscale_grads(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                                      Float16Grads float16_grads);

}  // namespace apex::amp::detail
