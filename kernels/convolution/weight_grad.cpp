#include "kernels/convolution/weight_grad.h"

#include <c10/util/Exception.h>

#include "kernels/convolution/checks.h"
#include "kernels/convolution/cpu/driver.h"

namespace apex::kernels {
namespace {

using convolution::answers_channels_last, convolution::is_taken, convolution::kLayout;

constexpr int64_t kFewestChannels = 16;  // fewer would leave much of a register empty

}  // namespace

bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight) {
  if (!has_convolutions() || !is_taken(grad_output) || !is_taken(input) || !is_taken(weight)) return false;
  return answers_channels_last(input, weight) && input.size(0) > 1 && weight.size(0) >= kFewestChannels &&
         weight.size(1) >= kFewestChannels && weight.size(1) == input.size(1) && weight.size(0) == grad_output.size(1) &&
         input.size(0) == grad_output.size(0);
}

ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias) {
  TORCH_CHECK(takes_convolution_weight_grad(grad_output, input, weight), "convolution_weight_grad: no kernel for an output of ",
              grad_output.sizes(), ", an input of ", input.sizes(), " and a weight of ", weight.sizes(),
              " here. Ask takes_convolution_weight_grad, and use at::convolution_backward.");
  convolution::check_sizes("convolution_weight_grad", grad_output.sizes(), input.sizes(), weight.sizes(), steps);
  const auto axis = [&](size_t i) {
    return convolution::axis_of(grad_output.sizes(), input.sizes(), weight.sizes(), steps, i);
  };
  return convolution::cpu::weight_grad(grad_output.contiguous(kLayout), input.contiguous(kLayout), axis(0), axis(1), with_bias);
}

}  // namespace apex::kernels
