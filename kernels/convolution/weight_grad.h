#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/steps.h"

namespace apex::kernels {

struct ConvolutionGrads {
  at::Tensor weight, bias;
};

/// Whether the kernel is there and made for this convolution, which is without groups and not transposed: dense bfloat16 CPU
/// tensors, `grad_output` of shape (N, O, H', W'), `input` of (N, C, H, W) and `weight` of (O, C, h, w), of which input or
/// weight are channels-last; N of at least 2, C and O of at least 16.
bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight);

/// The gradients, bfloat16: of the weight, (O, C, h, w), channels-last, and of the bias, (O), if asked for. Errors: c10::Error
/// for what `takes_convolution_weight_grad` denies, or sizes that do not belong together.
ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias);

}  // namespace apex::kernels
