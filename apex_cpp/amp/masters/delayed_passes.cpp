#include <apex_cpp/amp/masters/delayed_passes.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/grad_sync.h>

#include <algorithm>
#include <utility>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

void DelayedPasses::enter() {
  std::vector<at::Tensor> kept;
  for (TrainedParam* each : table_.all()) {
    at::Tensor& grad = each->param.mutable_grad();
    if (!grad.defined()) continue;
    if (is_behind(each->param)) {
      kept.push_back(grad = dense(grad));
    } else {
      each->waiting = std::exchange(grad, at::Tensor());
    }
  }
  const at::NoGradGuard no_grad;
  scale_all(kept, next_scale_ / scale_);
}

// What was reduced before passes within no_sync stays aside until theirs is reduced, too: it would count once for each rank.
// Sparse gradients are refused at the end of the block.
void DelayedPasses::join(double scale) {
  const auto params = table_.all();
  const bool is_within_no_sync =
      std::any_of(params.begin(), params.end(), [](const TrainedParam* each) { return has_unreduced_grad(each->param); });
  PassGrads grads;
  for (TrainedParam* each : params) {
    at::Tensor& grad = each->param.mutable_grad();
    const bool stays = (is_within_no_sync && is_behind(each->param)) || (grad.defined() && grad.is_sparse());
    if (stays || !each->waiting.defined()) continue;
    each->joined = dense(std::exchange(each->waiting, at::Tensor()));
    grads.add(each->param, grad.defined() ? each->joined : each->joined.clone());
  }
  scale_all(grads.older, scale / scale_);
  // Overflow of either side stays in the sums, where unscaling finds it.
  if (!grads.again.empty()) {
    kernels::multi_tensor_axpby(unread_flag(grads.again.front()), grads.again, grads.stashed, grads.again, 1.0, scale / scale_,
                                kernels::CheckArg::both);
  }
}

void DelayedPasses::exit(LossScaler& scaler) {
  join(scaler.loss_scale());
  std::vector<at::Tensor> still_waiting;
  for (TrainedParam* each : table_.all()) {
    each->joined.reset();
    if (each->waiting.defined()) still_waiting.push_back(each->waiting = dense(each->waiting));
  }
  scale_all(still_waiting, scaler.loss_scale() / scale_);
}

void DelayedPasses::abandon() {
  for (TrainedParam* each : table_.all()) {
    at::Tensor& before = each->joined.defined() ? each->joined : each->waiting;
    each->param.mutable_grad() = std::exchange(before, at::Tensor());
  }
}

}  // namespace apex::amp::detail
