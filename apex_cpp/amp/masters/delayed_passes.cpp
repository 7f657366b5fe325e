#include <apex_cpp/amp/masters/delayed_passes.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/grad_sync.h>

#include <algorithm>
#include <utility>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

// Whether passes since the last reduction have added to gradients here, which the next one is to reduce.
bool is_behind(const TrainedParam& each) {
  const auto sync = grad_sync_of(each.param);
  return sync && sync->is_behind();
}

bool is_unreduced(const TrainedParam* each) { return each->param.grad().defined() && is_behind(*each); }

}  // namespace

void DelayedPasses::enter() {
  std::vector<at::Tensor> kept;
  for (TrainedParam* each : table_.all()) {
    at::Tensor& grad = each->param.mutable_grad();
    if (!grad.defined()) continue;
    if (is_behind(*each)) {
      kept.push_back(grad = dense(grad));
    } else {
      each->waiting = std::exchange(grad, at::Tensor());
    }
  }
  const at::NoGradGuard no_grad;
  const double factor = next_scale_ / scale_;
  if (factor != 1 && !kept.empty()) kernels::multi_tensor_scale(unread_flag(kept.front()), kept, kept, factor);
}

// What was reduced before passes within no_sync stays aside until theirs is reduced, too: it would count once for each rank.
void DelayedPasses::exit(LossScaler& scaler) {
  const double factor = scaler.loss_scale() / scale_;
  const auto params = table_.all();
  const bool is_within_no_sync = std::any_of(params.begin(), params.end(), is_unreduced);
  PassGrads grads;
  for (TrainedParam* each : params) {
    if (!each->waiting.defined()) continue;
    if (is_within_no_sync && is_behind(*each)) {
      grads.older.push_back(each->waiting = dense(each->waiting));
    } else {
      grads.add(each->param, dense(std::exchange(each->waiting, at::Tensor())));
    }
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
