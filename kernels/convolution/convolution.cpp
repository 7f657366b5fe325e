#include "kernels/convolution/convolution.h"

#include "kernels/convolution/cpu/convolution_cpu.h"
#include "kernels/convolution/cpu/packed.h"

#include <c10/util/Exception.h>

namespace apex::kernels {
namespace {

using convolution::returns_channels_last, convolution::is_taken, convolution::kLayout;

// Both channel counts must be multiples of the block: each is the result dimension of one pass and the reduction of the other.
bool has_full_blocks(const at::Tensor& weight) {
  using convolution::cpu::kBlock, convolution::cpu::kChunk;
  static_assert(kBlock == kChunk);
  return weight.size(0) % kBlock == 0 && weight.size(1) % kBlock == 0;
}

bool is_for_kernel(const at::Tensor& input, const at::Tensor& weight) {
  return has_convolutions() && is_taken(input) && is_taken(weight) && returns_channels_last(input, weight) &&
         has_full_blocks(weight) && weight.size(1) == input.size(1);
}

// 1x1 convolutions without a stride: LibTorch's matrix product is faster.
bool is_matrix_product(const at::Tensor& weight, const ConvolutionSteps& steps) {
  return weight.size(2) * weight.size(3) == 1 && steps.stride == std::array<int64_t, 2>{1, 1};
}

bool is_for_channels(const std::optional<at::Tensor>& bias, int64_t channels) {
  if (!bias || !bias->defined()) return true;
  return bias->is_cpu() && bias->layout() == at::kStrided && bias->scalar_type() == at::kBFloat16 &&
         bias->sizes() == at::IntArrayRef{channels};
}

std::array<int64_t, 4> output_sizes(const at::Tensor& input, const at::Tensor& weight, const ConvolutionSteps& steps) {
  const auto size = [&](size_t i) {
    return convolution::output_size(convolution::axis_of(input.sizes(), input.sizes(), weight.sizes(), steps, i));
  };
  return {input.size(0), weight.size(0), size(0), size(1)};
}

}  // namespace

bool takes_convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps) {
  if (!is_for_kernel(input, weight) || is_matrix_product(weight, steps) || !is_for_channels(bias, weight.size(0))) return false;
  const auto sizes = output_sizes(input, weight, steps);
  return sizes[2] > 0 && sizes[3] > 0;
}

at::Tensor convolution_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionSteps& steps) {
  TORCH_INTERNAL_ASSERT(takes_convolution_forward(input, weight, bias, steps),
                        "convolution_forward: no kernel for an input of ", input.sizes(), " and a weight of ", weight.sizes(),
                        " here. Check takes_convolution_forward first, and use at::convolution.");
  const auto sizes = output_sizes(input, weight, steps);
  const auto axis = [&](size_t i) { return convolution::axis_of(sizes, input.sizes(), weight.sizes(), steps, i); };
  return convolution::cpu::forward(input.contiguous(kLayout), weight.contiguous(kLayout), bias.value_or(at::Tensor()), axis(0),
                                   axis(1));
}

bool takes_convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps) {
  if (!is_for_kernel(input, weight) || !is_taken(grad_output) || is_matrix_product(weight, steps)) return false;
  return grad_output.size(0) == input.size(0) && grad_output.size(1) == weight.size(0);
}

at::Tensor convolution_input_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                  const ConvolutionSteps& steps) {
  TORCH_INTERNAL_ASSERT(takes_convolution_input_grad(grad_output, input, weight, steps),
                        "convolution_input_grad: no kernel for an output of ", grad_output.sizes(), ", an input of ",
                        input.sizes(), " and a weight of ", weight.sizes(),
                        " here. Check takes_convolution_input_grad first, and use at::convolution_backward.");
  convolution::check_sizes("convolution_input_grad", grad_output.sizes(), input.sizes(), weight.sizes(), steps);
  const auto axis = [&](size_t i) {
    return convolution::axis_of(grad_output.sizes(), input.sizes(), weight.sizes(), steps, i);
  };
  return convolution::cpu::input_grad(grad_output.contiguous(kLayout), weight.contiguous(kLayout), axis(0), axis(1));
}

namespace {

constexpr int64_t kFewestChannels = 16;  // with fewer channels, most register lanes would be empty

}  // namespace

bool takes_convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight) {
  if (!has_convolutions() || !is_taken(grad_output) || !is_taken(input) || !is_taken(weight)) return false;
  return returns_channels_last(input, weight) && input.size(0) > 1 && weight.size(0) >= kFewestChannels &&
         weight.size(1) >= kFewestChannels && weight.size(1) == input.size(1) && weight.size(0) == grad_output.size(1) &&
         input.size(0) == grad_output.size(0);
}

ConvolutionGrads convolution_weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                         const ConvolutionSteps& steps, bool with_bias) {
  TORCH_INTERNAL_ASSERT(takes_convolution_weight_grad(grad_output, input, weight),
                        "convolution_weight_grad: no kernel for an output of ", grad_output.sizes(), ", an input of ",
                        input.sizes(), " and a weight of ", weight.sizes(),
                        " here. Check takes_convolution_weight_grad first, and use at::convolution_backward.");
  convolution::check_sizes("convolution_weight_grad", grad_output.sizes(), input.sizes(), weight.sizes(), steps);
  const auto axis = [&](size_t i) {
    return convolution::axis_of(grad_output.sizes(), input.sizes(), weight.sizes(), steps, i);
  };
  return convolution::cpu::weight_grad(grad_output.contiguous(kLayout), input.contiguous(kLayout), axis(0), axis(1), with_bias);
}

}  // namespace apex::kernels

namespace apex::kernels::convolution {

bool is_taken(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kBFloat16 &&
         tensor.numel() > 0;
}

bool returns_channels_last(const at::Tensor& input, const at::Tensor& weight) {
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
