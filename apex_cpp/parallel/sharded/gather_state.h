#pragma once

#include <ATen/core/Tensor.h>

#include <apex_cpp/parallel/sharded/sharded_grads.h>

namespace apex::parallel::detail {

/// The tensor in the memory order of `param`, whose shape it has; on its own device.
at::Tensor in_memory_order_of(const at::Tensor& param, const at::Tensor& tensor);

/// The ranks' parts of what is kept for the parameter `index`, joined: of the parameter's shape, on rank 0's CPU; undefined on
/// the other ranks, which hold one tensor of the parameter's size meanwhile. Collective.
at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part);

}  // namespace apex::parallel::detail
