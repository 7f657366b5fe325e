#pragma once

#include <ATen/core/Tensor.h>

#include <apex_cpp/parallel/sharded/sharded_grads.h>

namespace apex::parallel::detail {

/// The ranks' parts of what is kept for the parameter `index`, joined: of the parameter's shape, on rank 0's CPU; undefined on
/// the other ranks, which hold one tensor of the parameter's size meanwhile. Collective.
at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part);

}  // namespace apex::parallel::detail
