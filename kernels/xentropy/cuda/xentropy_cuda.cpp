#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/xentropy/cuda/launch.h"
#include "kernels/xentropy/xentropy.h"

namespace apex::kernels::xentropy::cuda {
namespace {

// Calls run(Stored()) with the storage type of the logits.
template <class Run>
void with_type(at::ScalarType logits, const Run& run) {
  if (logits == at::kDouble) return run(double());
  if (logits == at::kFloat) return run(float());
  logits == at::kHalf ? run(rules::Half()) : run(rules::BFloat16());
}

template <class Stored>
Args<Stored> args_for(const at::Tensor& logits, const CrossEntropyTargets& targets, const at::Tensor& log_sum_exp) {
  Args<Stored> args{};
  args.rows = logits.size(0);
  args.classes = logits.size(1);
  args.logits = static_cast<const Stored*>(logits.const_data_ptr());
  args.labels = targets.labels.const_data_ptr<int64_t>();
  args.smoothing = targets.smoothing;
  args.padding = targets.padding;
  args.log_sum_exp = static_cast<RealFor<Stored>*>(log_sum_exp.data_ptr());
  return args;
}

}  // namespace

void forward(const ForwardCall& call) {
  const c10::cuda::CUDAGuard device(call.logits.device());
  with_type(call.logits.scalar_type(), [&](auto stored) {
    using Real = RealFor<decltype(stored)>;
    auto args = args_for<decltype(stored)>(call.logits, call.targets, call.out.log_sum_exp);
    args.losses = static_cast<Real*>(call.out.losses.mutable_data_ptr());
    C10_CUDA_CHECK(launch_forward(args, c10::cuda::getCurrentCUDAStream()));
  });
}

void backward(const BackwardCall& call) {
  const c10::cuda::CUDAGuard device(call.logits.device());
  with_type(call.logits.scalar_type(), [&](auto stored) {
    using Real = RealFor<decltype(stored)>;
    auto args = args_for<decltype(stored)>(call.logits, call.targets, call.log_sum_exp);
    args.grad_losses = static_cast<const Real*>(call.grad_losses.const_data_ptr());
    args.grad_logits = static_cast<decltype(stored)*>(call.grad_logits.mutable_data_ptr());
    C10_CUDA_CHECK(launch_backward(args, c10::cuda::getCurrentCUDAStream()));
  });
}

}  // namespace apex::kernels::xentropy::cuda
