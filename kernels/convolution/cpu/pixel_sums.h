#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/cpu/packed_weight.h"
#include "kernels/convolution/cpu/pixel_products.h"
#include "kernels/convolution/pass.h"

namespace apex::kernels::convolution::cpu {

struct Passes {
  std::vector<Pass> height, width;
};

// Fills `result`, (N, blocks of channels, H', W'), with the sums that the passes take from `operand`, (N, chunks of channels,
// H, W), both channels-last bfloat16. `bias`: FP32, for each channel of the result.
void sum_pixels(const PixelProducts& products, const at::Tensor& operand, const PackedWeight& weight, const at::Tensor& bias,
                const Passes& passes, const at::Tensor& result);

}  // namespace apex::kernels::convolution::cpu
