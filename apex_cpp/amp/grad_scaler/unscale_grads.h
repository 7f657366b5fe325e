#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

// GradScaler's two passes over an optimizer's gradients. Each gradient counts once, however often its parameter is listed. Both
// return a float32 scalar per device with gradients: 1 if a gradient there is not finite, else 0. No synchronisation. For a
// sharded optimizer they first sum the gradients, and return one scalar for all ranks. Error, before anything is changed: a
// gradient that DistributedDataParallel has not reduced since a pass within no_sync.
namespace apex::amp::detail {

/// Multiplies the gradients by `inv_scale` (float32 scalar), in place; of a sparse gradient, the stored values. Errors, before
/// anything is changed: ValueError for a float16 gradient.
std::vector<at::Tensor> unscale_grads(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale);

/// Checks the gradients without writing. Sparse float16 gradients are checked after equal indices are summed, which may
/// overflow.
std::vector<at::Tensor> check_grads(const torch::optim::Optimizer& optimizer);

}  // namespace apex::amp::detail
