#pragma once

#include <array>

#include "kernels/convolution/axis_passes.h"
#include "tests/kernels/support.h"

namespace kernels_test {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

/// A 2d convolution.
struct ConvolutionShape {
  const char* what;
  int64_t images, input, output;
  std::array<int64_t, 2> size, kernel;
  apex::kernels::ConvolutionSteps steps;
};

constexpr apex::kernels::ConvolutionSteps every_pixel(int64_t padding) { return {{1, 1}, {padding, padding}, {1, 1}}; }

struct ConvolutionTensors {
  at::Tensor grad_output, input, weight;
};

int64_t output_size(const ConvolutionShape& shape, size_t i);

/// Random channels-last BFloat16 tensors.
ConvolutionTensors random_tensors(const ConvolutionShape& shape);

/// Expects `got` to equal `exact`, in float64, within the error of a sum of `terms` products of BFloat16 values: FP32 additions
/// in any order and grouping, and one rounding to BFloat16. `magnitudes`: the same sums over absolute values.
void expect_near(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& magnitudes, int64_t terms, const char* what);

}  // namespace kernels_test
