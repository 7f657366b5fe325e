#include <apex_cpp/amp/compute/operators.h>

#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/compute/convolution.h>
#include <apex_cpp/amp/compute/float32_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

template <Float32On kWhere, class... Ops>
struct Float32KernelsOn {
  static void register_in(torch::Library& library) { (Float32Kernel<Ops, Beside::nothing, kWhere>::register_in(library), ...); }
};
template <class... Ops>
using Float32Kernels = Float32KernelsOn<Float32On::processors_without_units, Ops...>;

// What linear layers, matmul, einsum, bilinear products and cells come down to, and a convolution over time.
using MatrixProducts = Float32Kernels<op::mm, op::addmm, op::addmm_, op::_addmm_activation, op::bmm, op::baddbmm, op::baddbmm_,
                                      op::addbmm, op::addbmm_, op::mv, op::addmv, op::addmv_, op::dot, op::vdot, op::conv_tbc>;

// What LibTorch has in 16 bits on CUDA tensors alone; with the derivatives.
using OnlyOnCuda =
    Float32KernelsOn<Float32On::no_native_kernel, op::avg_pool3d, op::avg_pool3d_backward, op::_upsample_bilinear2d_aa,
                     op::_upsample_bilinear2d_aa_backward, op::_upsample_bicubic2d_aa, op::_upsample_bicubic2d_aa_backward,
                     op::multi_margin_loss, op::multi_margin_loss_backward, op::multilabel_margin_loss_forward,
                     op::multilabel_margin_loss_backward, op::trace, op::_standard_gamma, op::_standard_gamma_grad,
                     op::_sample_dirichlet, op::_dirichlet_grad, op::binomial>;

// Attention's second result, the logarithms of its sums, is FP32 whatever the type.
std::tuple<at::Tensor, at::Tensor> attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, double dropout, bool is_causal,
                                             const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  using Op = op::_scaled_dot_product_flash_attention_for_cpu;
  keys = keys & kBelowComputeKey;
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

// Native BF16 takes twice FP32's time here even with AVX512-BF16.
using AttentionBackward =
    Float32Kernel<op::_scaled_dot_product_flash_attention_for_cpu_backward, Beside::float32, Float32On::all_processors>;

void register_float32(torch::Library& aten) {
  MatrixProducts::register_in(aten);
  OnlyOnCuda::register_in(aten);
  register_convolutions(aten);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  AttentionBackward::register_in(aten);
}

const AtenKernels& float32_kernels() {
  static const std::optional<torch::Library> fallback = fallthrough_library(kComputeKey);
  static const AtenKernels kernels(kComputeKey, register_float32);
  return kernels;
}

[[maybe_unused]] const AtenKernels& float32_at_load = float32_kernels();

}  // namespace

void register_float32_kernels() {
  float32_kernels();
  register_recurrent_layers();
  register_memory_bound_layers();
}

}  // namespace apex::amp::detail
