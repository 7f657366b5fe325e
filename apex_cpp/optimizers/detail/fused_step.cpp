#include <apex_cpp/optimizers/detail/fused_step.h>

#include <ATen/ops/full.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include "kernels/multi_tensor.h"

namespace apex::optimizers::detail {

at::Tensor global_grad_norm(const std::vector<std::vector<LaunchSet>>& sets_by_group, const kernels::StepControl& scaling) {
  std::vector<at::Tensor> grads;
  for (const auto& sets : sets_by_group) {
    for (const auto& set : sets) grads.insert(grads.end(), set.grads.begin(), set.grads.end());
  }
  if (grads.empty()) return {};
  const at::TensorOptions here = at::TensorOptions().device(grads.front().device());
  at::Tensor scale = at::full({1}, scaling.grad_scale, here.dtype(at::kFloat));
  if (scaling.grad_scale_tensor.defined()) scale = scale.mul(scaling.grad_scale_tensor.to(here.device()));
  return std::get<0>(
      kernels::multi_tensor_unscale_l2norm(amp::detail::unread_flag(grads.front()), grads, scale, /*per_tensor=*/false));
}

void lamb_step(const LaunchSet& set, const LambState& state, kernels::LambControl control) {
  control.global_grad_norm = moved_to(set.params.front().device(), control.global_grad_norm);
  const auto norms =
      kernels::multi_tensor_lamb_stage_1(set.grads, set.params, state.exp_avgs, state.exp_avg_sqs, state.updates, control);
  control.step_tensor.reset();  // the step is counted by stage 1
  kernels::multi_tensor_lamb_stage_2(state.updates, set.params, set.model_params, norms, control);
}

}  // namespace apex::optimizers::detail
