#include "kernels/convolution/weight_grad.h"

#include <c10/util/Exception.h>

#include "kernels/convolution/cpu/driver.h"

namespace apex::kernels {
namespace {

using convolution::Axis;

constexpr auto kLayout = at::MemoryFormat::ChannelsLast;
constexpr int64_t kFewestChannels = 16;  // fewer would leave much of a register empty

bool is_taken(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kBFloat16 &&
         tensor.numel() > 0;
}

Axis axis_of(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, const ConvolutionSteps& steps,
             int64_t i) {
  const Axis axis{input.size(2 + i), grad_output.size(2 + i), weight.size(2 + i),
                  steps.stride[i],   steps.padding[i],        steps.dilation[i]};
  const int64_t covered = axis.dilation * (axis.kernel - 1) + 1;
  TORCH_CHECK(axis.stride > 0 && axis.dilation > 0 && axis.padding >= 0 &&
                  axis.output == (axis.input + 2 * axis.padding - covered) / axis.stride + 1,
              "convolution_weight_grad: an output of ", grad_output.sizes(), " does not belong to an input of ", input.sizes(),
              " and a weight of ", weight.sizes(), " with stride ", axis.stride, ", padding ", axis.padding, " and dilation ",
              axis.dilation, " along dimension ", 2 + i, ".");
  return axis;
}

}  // namespace

bool has_convolution_weight_grad() { return convolution::cpu::is_available(); }

bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight) {
  if (!has_convolution_weight_grad() || !is_taken(grad_output) || !is_taken(input) || !is_taken(weight)) return false;
  const bool is_channels_last = input.suggest_memory_format() == kLayout || weight.suggest_memory_format() == kLayout;
  return is_channels_last && input.size(0) > 1 && weight.size(0) >= kFewestChannels && weight.size(1) >= kFewestChannels &&
         weight.size(1) == input.size(1) && weight.size(0) == grad_output.size(1) && input.size(0) == grad_output.size(0);
}

ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias) {
  TORCH_CHECK(takes_convolution_weight_grad(grad_output, input, weight), "convolution_weight_grad: no kernel for an output of ",
              grad_output.sizes(), ", an input of ", input.sizes(), " and a weight of ", weight.sizes(),
              " here. Ask takes_convolution_weight_grad, and use at::convolution_backward.");
  const Axis height = axis_of(grad_output, input, weight, steps, 0), width = axis_of(grad_output, input, weight, steps, 1);
  return convolution::cpu::weight_grad(grad_output.contiguous(kLayout), input.contiguous(kLayout), height, width, with_bias);
}

}  // namespace apex::kernels
