#include <apex_cpp/optimizers/detail/fused_step.h>

#include <ATen/ops/full.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include "kernels/moved_to.h"
#include "kernels/multi_tensor.h"

namespace apex::optimizers::detail {

at::Tensor grad_factor(c10::Device device, const kernels::StepSettings& settings, const kernels::StepTensors& tensors) {
  const at::Tensor scale = at::full({1}, settings.grad_scale, at::TensorOptions().device(device).dtype(at::kFloat));
  return tensors.grad_scale.defined() ? scale.mul(tensors.grad_scale.to(device)) : scale;
}

at::Tensor global_grad_norm(const std::vector<std::vector<LaunchSet>>& sets_by_group, const kernels::StepSettings& settings,
                            const kernels::StepTensors& tensors) {
  std::vector<at::Tensor> grads;
  for (const auto& sets : sets_by_group) {
    for (const auto& set : sets) grads.insert(grads.end(), set.grads.begin(), set.grads.end());
  }
  if (grads.empty()) return {};
  const at::Tensor scale = grad_factor(grads.front().device(), settings, tensors);
  return std::get<0>(
      kernels::multi_tensor_unscale_l2norm(amp::detail::unread_flag(grads.front()), grads, scale, /*per_tensor=*/false));
}

void lamb_step(const LaunchSet& set, const LambState& state, const at::Tensor& global_norm,
               const kernels::LambSettings& settings, const kernels::StepTensors& tensors,
               const std::function<void()>& after_first) {
  const at::Tensor norm = kernels::moved_to(set.params.front().device(), global_norm);
  if (state.updates.empty()) {
    return kernels::multi_tensor_split_lamb(set.grads, set.params, state.exp_avgs, state.exp_avg_sqs, set.model_params, norm,
                                            settings, tensors);
  }
  const auto norms = kernels::multi_tensor_lamb_stage_1(set.grads, set.params, state.exp_avgs, state.exp_avg_sqs, state.updates,
                                                        norm, settings, tensors);
  after_first();
  kernels::multi_tensor_lamb_stage_2(state.updates, set.params, set.model_params, norms, settings, tensors);
}

}  // namespace apex::optimizers::detail
