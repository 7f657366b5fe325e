#include <apex_cpp/amp/master_params.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::amp {

std::vector<at::Tensor> master_params(torch::optim::Optimizer& optimizer) {
  auto& stash = *detail::require_stash(optimizer, "master_params");
  stash.check_in_use();
  stash.check_masters_are_here("amp::master_params");
  stash.update_masters_from_edits();
  if (!stash.inside_backward()) stash.materialize_grads();
  return detail::params_of(optimizer.param_groups());
}

double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm) {
  auto& stash = *detail::require_stash(optimizer, "clip_grad_norm_");
  stash.check_in_use();
  TORCH_CHECK_VALUE(max_norm > 0, "amp::clip_grad_norm_: max_norm must be positive, got ", max_norm);
  TORCH_CHECK(!stash.inside_backward(),
              "amp::clip_grad_norm_ was called inside a scale_loss block, where the gradients are still scaled. Call it after "
              "the block.");
  stash.check_unscaled("amp::clip_grad_norm_");
  return stash.clip_grad_norm(max_norm);
}

StepResult step_result(torch::optim::Optimizer& optimizer) { return detail::require_stash(optimizer, "step_result")->result(); }

}  // namespace apex::amp
