#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>

#include <apex_cpp/amp/casts/cast_kernels.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/cpu_fallback/widen.h>
#include "kernels/convolution/convolution.h"

#include <ATen/Operators.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

template <Float32On kWhere, class... Ops>
struct Float32KernelsOn {
  static void register_in(torch::Library& library) { (Float32Kernel<Ops, Beside::nothing, kWhere>::register_in(library), ...); }
};
template <class... Ops>
using Float32Kernels = Float32KernelsOn<Float32On::processors_without_units, Ops...>;

// The operators behind linear layers, matmul, einsum, bilinear products and cells, and a convolution over time.
using MatrixProducts = Float32Kernels<op::mm, op::addmm, op::addmm_, op::_addmm_activation, op::bmm, op::baddbmm, op::baddbmm_,
                                      op::addbmm, op::addbmm_, op::mv, op::addmv, op::addmv_, op::dot, op::vdot, op::conv_tbc>;

// Operators that LibTorch has in 16 bits for CUDA tensors only, with their derivatives.
using OnlyOnCuda =
    Float32KernelsOn<Float32On::no_native_kernel, op::avg_pool3d, op::avg_pool3d_backward, op::_upsample_bilinear2d_aa,
                     op::_upsample_bilinear2d_aa_backward, op::_upsample_bicubic2d_aa, op::_upsample_bicubic2d_aa_backward,
                     op::multi_margin_loss, op::multi_margin_loss_backward, op::multilabel_margin_loss_forward,
                     op::multilabel_margin_loss_backward, op::trace, op::_standard_gamma, op::_standard_gamma_grad,
                     op::_sample_dirichlet, op::_dirichlet_grad, op::binomial>;

// Gradients that LibTorch's kernels add up in 16 bits: over the rows of a layer norm, over the places of a token.
using SumsOfGradients =
    Float32KernelsOn<Float32On::all_processors, op::native_layer_norm_backward, op::embedding_dense_backward,
                     op::_embedding_bag_dense_backward, op::grid_sampler_2d_backward, op::replication_pad1d_backward,
                     op::replication_pad2d_backward, op::replication_pad3d_backward>;

// The derivative of an index adds, too, where the index repeats: autograd alone passes `unsafe`. In FP64, because LibTorch adds
// FP32 by atomics, in an order that changes.
at::Tensor& index_put(c10::DispatchKeySet keys, at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                      const at::Tensor& values, bool accumulate, bool unsafe) {
  using Op = op::_index_put_impl_;
  keys = keys & kBelowCpuFallbackKey;
  Operands operands;
  operands.add(self);
  operands.add(values);
  if (!accumulate || !unsafe || !type_to_widen(operands, Beside::nothing, Float32On::all_processors)) {
    return Op::redispatch(keys, self, indices, values, accumulate, unsafe);
  }
  at::Tensor sum = self.to(at::kDouble);
  Op::redispatch(keys, sum, indices, values.to(at::kDouble), accumulate, unsafe);
  return self.copy_(sum);
}

// Attention's second result, the logarithms of its sums, is FP32 for every type.
std::tuple<at::Tensor, at::Tensor> attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, double dropout, bool is_causal,
                                             const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  using Op = op::_scaled_dot_product_flash_attention_for_cpu;
  keys = keys & kBelowCpuFallbackKey;
  Operands operands;
  operands.add(query);
  operands.add(key);
  operands.add(value);
  const auto type = type_to_widen(operands);
  if (!type) return Op::redispatch(keys, query, key, value, dropout, is_causal, mask, scale);
  const auto [output, log_sums] =
      Op::redispatch(keys, in_float32(query), in_float32(key), in_float32(value), dropout, is_causal, in_float32(mask), scale);
  return {rounded(output, *type), log_sums};
}

// Native BF16 takes twice as long as FP32 here, even with AVX512-BF16.
using AttentionBackward =
    Float32Kernel<op::_scaled_dot_product_flash_attention_for_cpu_backward, Beside::float32, Float32On::all_processors>;

void register_float32(torch::Library& aten) {
  MatrixProducts::register_in(aten);
  OnlyOnCuda::register_in(aten);
  SumsOfGradients::register_in(aten);
  aten.impl("_index_put_impl_", TORCH_FN(index_put));
  register_convolutions(aten);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  AttentionBackward::register_in(aten);
}

const AtenKernels& float32_kernels() {
  static const std::optional<torch::Library> fallback = fallthrough_library(kCpuFallbackKey);
  static const AtenKernels kernels(kCpuFallbackKey, register_float32);
  return kernels;
}

[[maybe_unused]] const AtenKernels& float32_at_load = float32_kernels();

}  // namespace

void register_float32_kernels() {
  float32_kernels();
  register_recurrent_layers();
  register_memory_bound_layers();
}

namespace {

using Convolution = at::_ops::convolution;
using ConvolutionBackward = at::_ops::convolution_backward;
using at::Tensor;
using c10::SymIntArrayRef;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

/// True for one value per dimension or one value for all. LibTorch refuses any other number.
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
  if (!kernels::has_fast_convolutions() || !steps.are_for_kernels()) return false;
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

namespace {

namespace op = at::_ops;

/// The next kernel after the cast engine for a recurrent layer. If the layer is to compute in FP32 for 16-bit CPU tensors, the
/// whole layer is converted above autograd: its weights become FP32 once per call and not once per time step. Autograd records
/// the conversions.
template <class Op, class Schema = typename Op::schema>
struct Float32Layer;

template <class Op, class Result, class... Args>
struct Float32Layer<Op, Result(Args...)> {
  static Result redispatch(c10::DispatchKeySet keys, Args... args) {
    Operands operands;
    (operands.add(args), ...);
    const auto type = type_to_widen(operands);
    if (!type) return Op::redispatch(keys, static_cast<Args&&>(args)...);
    return rounded(Op::redispatch(keys, in_float32(args)...), *type);
  }
};

template <class... Ops>
struct RecurrentLayers {
  static void register_in(torch::Library& library) { (UnboxedKernel<Ops, Float32Layer<Ops>>::register_in(library), ...); }
};

using AllRecurrent =
    RecurrentLayers<op::rnn_relu_input, op::rnn_relu_data, op::rnn_tanh_input, op::rnn_tanh_data, op::gru_input, op::gru_data,
                    op::lstm_input, op::lstm_data, op::rnn_relu_cell, op::rnn_tanh_cell, op::gru_cell, op::lstm_cell>;

const AtenKernels& recurrent_kernels() {
  static const AtenKernels kernels(kCastKey, AllRecurrent::register_in);
  return kernels;
}

[[maybe_unused]] const AtenKernels& recurrent_at_load = recurrent_kernels();

}  // namespace

void register_recurrent_layers() { recurrent_kernels(); }

}  // namespace apex::amp::detail
