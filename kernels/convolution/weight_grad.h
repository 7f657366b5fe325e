#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

// The gradients of a 2d convolution's weight and bias in bfloat16, on CPUs with AVX512-BF16.
namespace apex::kernels {

/// How a convolution moves over its input, for height and width.
struct ConvolutionSteps {
  std::array<int64_t, 2> stride, padding, dilation;
};

struct ConvolutionGrads {
  at::Tensor weight, bias;
};

/// Whether this build and this processor have the kernel.
bool has_convolution_weight_grad();

/// Whether the kernel is there and made for this convolution, which is without groups and not transposed: dense bfloat16 CPU
/// tensors, `grad_output` of shape (N, O, H', W'), `input` of (N, C, H, W) and `weight` of (O, C, h, w), of which input or
/// weight are channels-last; N of at least 2, C and O of at least 16.
bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight);

/// The gradients, bfloat16: of the weight, (O, C, h, w), channels-last, and of the bias, (O), if asked for. Products are exact,
/// their sums FP32 in an order that depends on the shapes alone, whatever the number of threads; rounded once. Like all
/// AVX512-BF16 products these take subnormal values for zero. Errors: c10::Error for what
/// `takes_convolution_weight_grad` denies, or sizes that do not belong together.
ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias);

}  // namespace apex::kernels
