#pragma once

#include "kernels/convolution/pass.h"

#include <ATen/core/Tensor.h>

#include <optional>

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

namespace apex::kernels::convolution {

constexpr auto kLayout = at::MemoryFormat::ChannelsLast;

// A dense bfloat16 CPU tensor of four dimensions, with elements.
bool is_taken(const at::Tensor& tensor);

// Whether LibTorch's convolution, too, answers with a channels-last tensor.
bool answers_channels_last(const at::Tensor& input, const at::Tensor& weight);

// Along height or width, which `i` of 0 or 1 says.
Axis axis_of(at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight, const ConvolutionSteps& steps,
             size_t i);

// What the input becomes; not above 0 where the kernel does not fit into it, and -1 for steps that no convolution has.
int64_t output_size(const Axis& axis);

// Throws c10::Error, which names `who` and the sizes, unless they belong together.
void check_sizes(const char* who, at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight,
                 const ConvolutionSteps& steps);

}  // namespace apex::kernels::convolution
