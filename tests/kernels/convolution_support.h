#pragma once

#include <array>

#include "kernels/convolution/pass.h"
#include "tests/kernels/support.h"

namespace kernels_test {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

/// A convolution in two dimensions.
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

/// Random BFloat16 tensors, channels-last.
ConvolutionTensors random_tensors(const ConvolutionShape& shape);

/// Expects `got` to be `exact`, in float64, but for what a sum of `terms` products of BFloat16 values may err: FP32 additions
/// in any order, in partial sums or in one, and one rounding to BFloat16. `magnitudes`: the same sums of absolute values.
void expect_near(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& magnitudes, int64_t terms, const char* what);

}  // namespace kernels_test
