#pragma once

#include <array>
#include <cstdint>

// What the kernels for 2d convolutions in bfloat16, on CPUs with AVX512-BF16, have in common. Their products are exact, and
// take subnormal values for zero like all of that instruction set; sums are FP32, in an order that depends on the shapes alone,
// whatever the number of threads; results are rounded once, and channels-last. Outputs and gradients of inputs next to a border
// at the left or right may have products of padding, which is zeros: NaN, if a weight is not finite.
namespace apex::kernels {

/// How a convolution moves over its input, for height and width.
struct ConvolutionSteps {
  std::array<int64_t, 2> stride, padding, dilation;
};

/// Whether this build and this processor have the kernels. A processor with AMX-BF16 has faster ones of LibTorch's, so the
/// answer is no, whatever oneDNN is held to.
bool has_convolutions();

}  // namespace apex::kernels
