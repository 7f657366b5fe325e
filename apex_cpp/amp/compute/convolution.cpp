#include <apex_cpp/amp/compute/convolution.h>

#include <ATen/Operators.h>

#include <apex_cpp/amp/compute/float32_kernel.h>

#include "kernels/convolution/convolution.h"
#include "kernels/convolution/weight_grad.h"

namespace apex::amp::detail {
namespace {

using Convolution = at::_ops::convolution;
using ConvolutionBackward = at::_ops::convolution_backward;
using at::Tensor;
using c10::SymIntArrayRef;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

/// One value for each dimension, or one for all: any other number is LibTorch's to refuse.
bool are_for_images(SymIntArrayRef values) { return values.size() == 1 || values.size() == 2; }
std::array<int64_t, 2> height_and_width(SymIntArrayRef values) {
  return {values.front().expect_int(), values.back().expect_int()};
}

struct Steps {
  SymIntArrayRef stride, padding, dilation;
  bool transposed;
  const c10::SymInt& groups;

  bool are_for_kernels() const {
    return !transposed && groups == 1 && are_for_images(stride) && are_for_images(padding) && are_for_images(dilation);
  }
  kernels::ConvolutionSteps for_kernels() const {
    return {height_and_width(stride), height_and_width(padding), height_and_width(dilation)};
  }
};

template <class... Tensors>
bool wants_kernel(const Steps& steps, const Tensors&... tensors) {
  if (!steps.are_for_kernels()) return false;
  Operands operands;
  (operands.add(tensors), ...);
  return type_with_own_products(operands) == at::kBFloat16;
}

Tensor convolution(c10::DispatchKeySet keys, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                   SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                   SymIntArrayRef output_padding, c10::SymInt groups) {
  const Steps given{stride, padding, dilation, transposed, groups};
  if (x.dim() == 4 && wants_kernel(given, x, weight, bias)) {
    const auto steps = given.for_kernels();
    if (kernels::takes_convolution_forward(x, weight, bias, steps)) {
      return kernels::convolution_forward(x, weight, bias, steps);
    }
  }
  return Float32Kernel<Convolution>::call(keys, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

ThreeTensors convolution_backward(c10::DispatchKeySet keys, const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  at::OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride, SymIntArrayRef padding,
                                  SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding, c10::SymInt groups,
                                  std::array<bool, 3> needs) {
  const auto by_torch = [&](std::array<bool, 3> wanted) {
    return Float32Kernel<ConvolutionBackward>::call(keys, grad_y, x, weight, bias_sizes, stride, padding, dilation, transposed,
                                                    output_padding, groups, wanted);
  };
  const Steps given{stride, padding, dilation, transposed, groups};
  if (x.dim() != 4 || !wants_kernel(given, grad_y, x, weight)) return by_torch(needs);
  const auto steps = given.for_kernels();
  const bool has_input_grad = needs[0] && kernels::takes_convolution_input_grad(grad_y, x, weight, steps);
  const bool has_weight_grad = needs[1] && kernels::takes_convolution_weight_grad(grad_y, x, weight);
  const std::array<bool, 3> rest{needs[0] && !has_input_grad, needs[1] && !has_weight_grad, needs[2] && !has_weight_grad};
  ThreeTensors grads;
  if (rest[0] || rest[1] || rest[2]) grads = by_torch(rest);
  if (has_input_grad) std::get<0>(grads) = kernels::convolution_input_grad(grad_y, x, weight, steps);
  if (has_weight_grad) {
    const auto own = kernels::convolution_weight_grad(grad_y, x, weight, steps, needs[2]);
    std::get<1>(grads) = own.weight;
    if (needs[2]) std::get<2>(grads) = own.bias;
  }
  return grads;
}

}  // namespace

void register_convolutions(torch::Library& aten) {
  aten.impl("convolution", TORCH_FN(convolution));
  aten.impl("convolution_backward", TORCH_FN(convolution_backward));
}

}  // namespace apex::amp::detail
