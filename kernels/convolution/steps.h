#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

// What the kernels for 2d convolutions in bfloat16, on CPUs with AVX512-BF16, have in common. Their products are exact, and
// take subnormal values for zero like all of that instruction set; padding is zeros; sums are FP32, in an order that depends
// on the shapes alone, whatever the number of threads; results are rounded once, and channels-last.
namespace apex::kernels {

/// How a convolution moves over its input, for height and width.
struct ConvolutionSteps {
  std::array<int64_t, 2> stride, padding, dilation;
};

/// Whether this build and this processor have the kernels, and LibTorch has nothing faster: where there is AMX-BF16, it has.
bool has_convolutions();

}  // namespace apex::kernels
