#pragma once

#include <torch/library.h>

namespace apex::amp::detail {

/// Gives batch norm of BFloat16 CPU tensors, forward and backward, its kernels: for channels-last tensors with parameters and
/// running statistics in FP32, as levels keep them. All else is left to LibTorch.
void register_batch_norm(torch::Library& aten);

}  // namespace apex::amp::detail
