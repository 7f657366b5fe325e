#include <apex_cpp/amp/masters/delayed_passes.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/grad_sync.h>

#include <utility>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

void DelayedPasses::enter() {
  std::vector<at::Tensor> kept;
  for (TrainedParam* each : table_.all()) {
    at::Tensor& grad = each->param.mutable_grad();
    if (!grad.defined()) continue;
    if (grad_sync_of(each->param)) {
      kept.push_back(grad = dense(grad));
    } else {
      each->waiting = std::exchange(grad, at::Tensor());
    }
  }
  const at::NoGradGuard no_grad;
  const double factor = next_scale_ / scale_;
  if (factor != 1 && !kept.empty()) kernels::multi_tensor_scale(unread_flag(kept.front()), kept, kept, factor);
}

void DelayedPasses::exit(LossScaler& scaler) {
  const double factor = scaler.loss_scale() / scale_;
  PassGrads grads;
  for (TrainedParam* each : table_.all()) {
    const at::Tensor waiting = std::exchange(each->waiting, at::Tensor());
    if (waiting.defined()) grads.add(each->param, dense(waiting));
  }
  if (factor != 1 && !grads.older.empty()) {
    kernels::multi_tensor_scale(unread_flag(grads.older.front()), grads.older, grads.older, factor);
  }
  // Overflow of either side stays in the sums, where unscaling finds it.
  if (!grads.again.empty()) {
    kernels::multi_tensor_axpby(unread_flag(grads.again.front()), grads.again, grads.stashed, grads.again, 1.0, factor,
                                kernels::CheckArg::both);
  }
}

void DelayedPasses::abandon() {
  for (TrainedParam* each : table_.all()) each->param.mutable_grad() = std::exchange(each->waiting, at::Tensor());
}

}  // namespace apex::amp::detail
