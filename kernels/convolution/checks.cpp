#include "kernels/convolution/checks.h"

#include <c10/util/Exception.h>

namespace apex::kernels::convolution {

bool is_taken(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kBFloat16 &&
         tensor.numel() > 0;
}

bool answers_channels_last(const at::Tensor& input, const at::Tensor& weight) {
  return input.suggest_memory_format() == kLayout || weight.suggest_memory_format() == kLayout;
}

Axis axis_of(at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight, const ConvolutionSteps& steps,
             size_t i) {
  return {input[2 + i], grad_output[2 + i], weight[2 + i], steps.stride[i], steps.padding[i], steps.dilation[i]};
}

int64_t output_size(const Axis& axis) {
  if (axis.stride <= 0 || axis.padding < 0 || axis.dilation <= 0) return -1;
  const int64_t moves = axis.input + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1;
  return moves < 0 ? 0 : moves / axis.stride + 1;
}

void check_sizes(const char* who, at::IntArrayRef grad_output, at::IntArrayRef input, at::IntArrayRef weight,
                 const ConvolutionSteps& steps) {
  for (size_t i = 0; i < 2; ++i) {
    const Axis axis = axis_of(grad_output, input, weight, steps, i);
    TORCH_CHECK(axis.output == output_size(axis), who, ": an output of ", grad_output, " does not belong to an input of ",
                input, " and a weight of ", weight, " with stride ", axis.stride, ", padding ", axis.padding, " and dilation ",
                axis.dilation, " along dimension ", 2 + i, ".");
  }
}

}  // namespace apex::kernels::convolution
