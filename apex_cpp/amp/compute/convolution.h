#pragma once

#include <torch/library.h>

namespace apex::amp::detail {

/// Gives the gradients of convolutions of 16-bit CPU tensors their kernels: in FP32 like other products, and where BFloat16 is
/// native, for the weights of channels-last convolutions in two dimensions, a kernel of ours, which takes less time than
/// LibTorch's.
void register_convolution_backward(torch::Library& aten);

}  // namespace apex::amp::detail
