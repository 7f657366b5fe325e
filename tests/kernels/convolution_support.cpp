#include "tests/kernels/convolution_support.h"

namespace kernels_test {

int64_t output_size(const ConvolutionShape& s, size_t i) {
  const int64_t covered = s.steps.dilation[i] * (s.kernel[i] - 1) + 1;
  return (s.size[i] + 2 * s.steps.padding[i] - covered) / s.steps.stride[i] + 1;
}

ConvolutionTensors random_tensors(const ConvolutionShape& s) {
  const auto values = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16).contiguous(kChannelsLast); };
  return {values({s.images, s.output, output_size(s, 0), output_size(s, 1)}), values({s.images, s.input, s.size[0], s.size[1]}),
          values({s.output, s.input, s.kernel[0], s.kernel[1]})};
}

// Products of two bfloat16 values are exact in FP32. A sum of n terms has n - 1 roundings, and one for each partial sum that is
// added to another one; there are fewer partial sums than terms. The total error is at most 2 n half steps of FP32, plus one
// final rounding.
void expect_near(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& magnitudes, int64_t terms,
                 const char* what) {
  const at::Tensor bound = exact.abs() * 0x1p-8 + magnitudes * (static_cast<double>(2 * terms) * 0x1p-24 * (1 + 0x1p-8));
  const at::Tensor error = (got.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << what << ": wrong by " << (error - bound).max().item<double>() << " more than rounding explains";
}

}  // namespace kernels_test
