#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// LibTorch's CPU kernels add up values of a channel that lie side by side with other channels' one by one in float32, so that
// sums over many rows lose digits. Here such a batch is handed to them as one of many more channels with few rows each, whose
// results are then put together in float64. In memory nothing moves, as long as layouts agree.
namespace apex::parallel::detail {

/// A batch [N, C, *] as parts [rows, groups * C], in the division that suits the layout of `batch`, which has the same shape;
/// itself as the only part where no digits are lost.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& batch);

/// How many values of a channel a part has in each of its groups.
int64_t values_in_group(const at::Tensor& part);

}  // namespace apex::parallel::detail
