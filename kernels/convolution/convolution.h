#pragma once

#include "kernels/convolution/axis_passes.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace apex::kernels {

/// True if a kernel supports this convolution, which must have groups = 1 and not be transposed. Requires dense bfloat16 CPU
/// tensors, at least one of `input` and `weight` channels-last: `input` of shape (N, C, H, W), `weight` of (O, C, h, w) with
/// more than one tap or a stride, and `bias`, if defined, of (O). C and O must be multiples of 32 and the output must not be
/// empty.
bool takes_convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps);

/// Returns the output, (N, O, H', W'). Errors: c10::Error if `takes_convolution_forward` returns false.
at::Tensor convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps);

/// True if a kernel supports the gradient of this convolution's input. `grad_output` has shape (N, O, H', W').
bool takes_convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps);

/// Returns the gradient, (N, C, H, W); only the sizes of `input` are read. Errors: c10::Error if `takes_convolution_input_grad`
/// returns false or the sizes do not match.
at::Tensor convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps);

struct ConvolutionGrads {
  at::Tensor weight, bias;
};

/// True if a kernel supports the weight gradient of this convolution, which must have groups = 1 and not be transposed.
/// Requires dense bfloat16 CPU tensors, `grad_output` of shape (N, O, H', W'), `input` of (N, C, H, W) and `weight` of (O, C,
/// h, w), with `input` or `weight` channels-last, N >= 2, C and O >= 16.
bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight);

/// Returns bfloat16 gradients: of the weight, (O, C, h, w), channels-last, and, if `with_bias`, of the bias, (O). Errors:
/// c10::Error if `takes_convolution_weight_grad` returns false or the sizes do not match.
ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias);

}  // namespace apex::kernels

namespace apex::kernels::convolution {

constexpr auto kLayout = at::MemoryFormat::ChannelsLast;

// True for a dense, non-empty bfloat16 CPU tensor with four dimensions.
bool is_taken(const at::Tensor& tensor);

// True if LibTorch's convolution would return a channels-last tensor for these operands.
bool returns_channels_last(const at::Tensor& input, const at::Tensor& weight);

// The spatial axis `i`: 0 is height, 1 is width.
Axis axis_of(at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight, const ConvolutionSteps& steps,
             size_t i);

// The output size along an axis. Not positive if the kernel is larger than the padded input; -1 for invalid steps.
int64_t output_size(const Axis& axis);

// Throws c10::Error, naming `who` and the sizes, if the sizes do not match.
void check_sizes(const char* who, at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight,
                 const ConvolutionSteps& steps);

}  // namespace apex::kernels::convolution
