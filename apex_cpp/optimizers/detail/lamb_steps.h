#pragma once

#include <apex_cpp/optimizers/fused_optimizer.h>

#include "kernels/optimizers.h"

// What FusedLAMB and FusedMixedPrecisionLamb share.
namespace apex::optimizers::detail {

/// The L2 norm of all gradients of all sets after `grad_scale`, and its device factor if there is one: float32, one element, on
/// the first gradient's device. Undefined if there is no gradient.
at::Tensor global_grad_norm(const std::vector<std::vector<LaunchSet>>& sets_by_group, const kernels::StepControl& scaling);

template <class Options>
kernels::LambControl lamb_control(const Options& options) {
  kernels::LambControl control;
  control.lr = options.lr();
  control.weight_decay = options.weight_decay();
  std::tie(control.beta1, control.beta2) = options.betas();
  control.eps = options.eps();
  control.bias_correction = options.bias_correction();
  control.adam_w_mode = options.adam_w_mode();
  control.grad_averaging = options.grad_averaging();
  control.use_nvlamb = options.use_nvlamb();
  return control;
}

/// The state's tensors that a stage works on, matched by index.
struct LambState {
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, updates;
};

/// Both stages for one set.
void lamb_step(const LaunchSet& set, const LambState& state, kernels::LambControl control);

}  // namespace apex::optimizers::detail
