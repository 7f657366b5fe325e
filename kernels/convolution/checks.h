#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/axis.h"
#include "kernels/convolution/steps.h"

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
