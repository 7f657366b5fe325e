#pragma once

#include <torch/library.h>

namespace apex::amp::detail {

/// Gives convolutions of 16-bit CPU tensors, and their gradients, their kernels: in FP32 like other products, and where
/// BFloat16 is native, for channels-last convolutions in two dimensions, kernels of ours.
void register_convolutions(torch::Library& aten);

}  // namespace apex::amp::detail
