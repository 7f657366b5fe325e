#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/axis.h"
#include "kernels/convolution/weight_grad.h"

namespace apex::kernels::convolution::cpu {

// Whether this build and this processor have the products.
bool is_available();

// The gradients of channels-last bfloat16 tensors.
ConvolutionGrads weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const Axis& height, const Axis& width,
                             bool with_bias);

}  // namespace apex::kernels::convolution::cpu
