#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

// GradScaler's two passes over the gradients of an optimizer, each counted once however often its parameter is listed. Both
// answer one float32 scalar for every device with gradients: 1 if one there is not finite, else 0. No synchronisation. Of a
// sharded optimizer they add up the gradients first, and answer one scalar for all ranks. Error, before anything is changed: a
// gradient that DistributedDataParallel has not reduced since a pass within no_sync.
namespace apex::amp::detail {

/// Multiplies the gradients by `inv_scale` (float32 scalar), in place; of sparse ones the values as they are stored.
/// Errors, before anything is changed: ValueError for a float16 gradient.
std::vector<at::Tensor> unscale_grads(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale);

/// Reads the gradients and writes nothing. Sparse ones in float16 are looked at as sums over equal indices, which may overflow.
std::vector<at::Tensor> check_grads(const torch::optim::Optimizer& optimizer);

}  // namespace apex::amp::detail
