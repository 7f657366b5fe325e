#include "kernels/normalization/normalization.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/normalization/cpu/normalization_cpu.h"
#ifdef APEX_CPP_HAS_CUDA
#include "kernels/normalization/cuda/normalization_cuda.h"
#endif

namespace apex::kernels {
namespace {

at::ScalarType math_dtype(const at::Tensor& input) { return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

[[noreturn]] void fail_for(c10::Device device) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str("normalization: no kernels for tensors on ", device,
               device.is_cuda()
                   ? ": this build has no CUDA kernels. Configure it with APEX_CPP_CUDA=ON, or use torch::nn::LayerNorm."
                   : ". Use torch::nn::LayerNorm there."));
}

template <class Call>
void run(const Call& call, c10::Device device, void (*on_cpu)(const Call&), void (*on_cuda)(const Call&)) {
  if (device.is_cpu()) {
    on_cpu(call);
  } else if (device.is_cuda() && on_cuda != nullptr) {
    on_cuda(call);
  } else {
    fail_for(device);
  }
}

#ifdef APEX_CPP_HAS_CUDA
constexpr auto* kCudaForward = normalization::cuda::forward;
constexpr auto* kCudaBackward = normalization::cuda::backward;
#else
constexpr void (*kCudaForward)(const normalization::ForwardCall&) = nullptr;
constexpr void (*kCudaBackward)(const normalization::BackwardCall&) = nullptr;
#endif

}  // namespace

NormForward norm_forward(NormKind kind, NormShape shape, const at::Tensor& input, const NormAffine& affine, double eps) {
  const at::NoGradGuard no_grad;
  const at::Tensor& like = affine.weight.defined() ? affine.weight : input;
  const auto statistics = input.options().dtype(math_dtype(input));
  NormForward out;
  out.output = at::empty_like(input, like.scalar_type());
  if (kind == NormKind::layer) out.mean = at::empty({shape.rows}, statistics);
  out.inv_std = at::empty({shape.rows}, statistics);
  const normalization::ForwardCall call{kind, shape, input, affine, eps, out};
  if (input.numel() != 0) run(call, input.device(), normalization::cpu::forward, kCudaForward);
  return out;
}

NormGrads norm_backward(NormKind kind, NormShape shape, const at::Tensor& grad_output, const NormSaved& saved,
                        const NormAffine& affine, at::ScalarType input_dtype, std::array<bool, 3> needs) {
  const at::NoGradGuard no_grad;
  NormGrads out;
  if (needs[0]) out.input = at::empty_like(grad_output, input_dtype);
  if (needs[1] && affine.weight.defined()) out.weight = at::empty_like(affine.weight);
  if (needs[2] && affine.bias.defined()) out.bias = at::empty_like(affine.bias);
  if (grad_output.numel() == 0) {
    if (out.weight.defined()) out.weight.zero_();
    if (out.bias.defined()) out.bias.zero_();
    return out;
  }
  const normalization::BackwardCall call{kind, shape, grad_output, saved, affine, out};
  run(call, grad_output.device(), normalization::cpu::backward, kCudaBackward);
  return out;
}

}  // namespace apex::kernels
