#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/convolution/steps.h"

namespace apex::kernels {

/// Whether there is a kernel for this convolution, without groups and not transposed: dense bfloat16 CPU tensors, `input` of
/// shape (N, C, H, W), `weight` of (O, C, h, w) with more than one tap or a stride, of which one is channels-last, and `bias`
/// of (O), if any; C and O multiples of 32; an output that is not empty.
bool takes_convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps);

/// The output, (N, O, H', W'). Errors: c10::Error for what `takes_convolution_forward` denies.
at::Tensor convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps);

/// Whether there is a kernel for the gradient of that convolution's input, where `grad_output` is (N, O, H', W').
bool takes_convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps);

/// The gradient, (N, C, H, W), for which `input` has the sizes. Errors: c10::Error for what `takes_convolution_input_grad`
/// denies, or sizes that do not belong together.
at::Tensor convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps);

}  // namespace apex::kernels
