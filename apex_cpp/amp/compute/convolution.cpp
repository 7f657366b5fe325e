#include <apex_cpp/amp/compute/convolution.h>

#include <ATen/Operators.h>

#include <apex_cpp/amp/compute/float32_kernel.h>

#include "kernels/convolution/weight_grad.h"

namespace apex::amp::detail {
namespace {

using ConvolutionBackward = at::_ops::convolution_backward;
using at::Tensor;
using c10::SymIntArrayRef;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

/// One value for each dimension, or one for all.
std::array<int64_t, 2> height_and_width(SymIntArrayRef values) {
  return {values.front().expect_int(), values.back().expect_int()};
}

bool is_for_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& weight, bool transposed, const c10::SymInt& groups) {
  if (transposed || groups != 1) return false;
  Operands operands;
  operands.add(grad_y);
  operands.add(x);
  operands.add(weight);
  return type_with_own_products(operands) == at::kBFloat16 && kernels::takes_convolution_weight_grad(grad_y, x, weight);
}

ThreeTensors convolution_backward(c10::DispatchKeySet keys, const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  at::OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride, SymIntArrayRef padding,
                                  SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding, c10::SymInt groups,
                                  std::array<bool, 3> needs) {
  if (!needs[1] || !is_for_kernel(grad_y, x, weight, transposed, groups)) {
    return Float32Kernel<ConvolutionBackward>::call(keys, grad_y, x, weight, bias_sizes, stride, padding, dilation, transposed,
                                                    output_padding, groups, needs);
  }
  Tensor grad_x;
  if (needs[0]) {
    grad_x =
        std::get<0>(ConvolutionBackward::redispatch(keys & kBelowComputeKey, grad_y, x, weight, bias_sizes, stride, padding,
                                                    dilation, transposed, output_padding, groups, {true, false, false}));
  }
  const kernels::ConvolutionSteps steps{height_and_width(stride), height_and_width(padding), height_and_width(dilation)};
  const auto grads = kernels::convolution_weight_grad(grad_y, x, weight, steps, needs[2]);
  return {grad_x, grads.weight, grads.bias};
}

}  // namespace

void register_convolution_backward(torch::Library& aten) { aten.impl("convolution_backward", TORCH_FN(convolution_backward)); }

}  // namespace apex::amp::detail
