#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/axis.h"
#include "kernels/convolution/weight_grad.h"

namespace apex::kernels::convolution::cpu {

// Of channels-last bfloat16 tensors. The bias may be undefined.
at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Axis& height,
                   const Axis& width);
at::Tensor input_grad(const at::Tensor& grad_output, const at::Tensor& weight, const Axis& height, const Axis& width);
ConvolutionGrads weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const Axis& height, const Axis& width,
                             bool with_bias);

}  // namespace apex::kernels::convolution::cpu
