#include "kernels/xentropy/xentropy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/xentropy/cpu/xentropy_cpu.h"

namespace apex::kernels {
namespace {

#ifdef APEX_CPP_HAS_CUDA
constexpr auto* kForwardOnCuda = xentropy::cuda::forward;
constexpr auto* kBackwardOnCuda = xentropy::cuda::backward;
#else
constexpr void (*kForwardOnCuda)(const xentropy::ForwardCall&) = nullptr;
constexpr void (*kBackwardOnCuda)(const xentropy::BackwardCall&) = nullptr;
#endif

template <class Call>
void run_on_device_of(const Call& call, void (*on_cpu)(const Call&), void (*on_cuda)(const Call&)) {
  const c10::Device device = call.logits.device();
  if (call.logits.numel() == 0) return;
  if (device.is_cpu()) return on_cpu(call);
  if (device.is_cuda() && on_cuda != nullptr) return on_cuda(call);
  C10_THROW_ERROR(NotImplementedError,
                  c10::str("xentropy: no kernels for tensors on ", device,
                           device.is_cuda() ? ": this build has no CUDA kernels. Configure it with APEX_CPP_CUDA=ON, or use "
                                              "torch::nn::functional::cross_entropy."
                                            : ". Use torch::nn::functional::cross_entropy there."));
}

}  // namespace

CrossEntropy cross_entropy_forward(const at::Tensor& logits, const CrossEntropyTargets& targets) {
  const at::NoGradGuard no_grad;
  const auto options = logits.options().dtype(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const int64_t rows = logits.size(0);
  const CrossEntropy out{at::empty({rows}, options), at::empty({rows}, options)};
  run_on_device_of(xentropy::ForwardCall{logits, targets, out}, xentropy::cpu::forward, kForwardOnCuda);
  return out;
}

at::Tensor cross_entropy_backward(const at::Tensor& grad_losses, const at::Tensor& logits, const at::Tensor& log_sum_exp,
                                  const CrossEntropyTargets& targets) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad_logits = at::empty_like(logits);
  run_on_device_of(xentropy::BackwardCall{grad_losses, logits, log_sum_exp, targets, grad_logits}, xentropy::cpu::backward,
                   kBackwardOnCuda);
  return grad_logits;
}

}  // namespace apex::kernels
