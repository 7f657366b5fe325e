#pragma once

#include "kernels/optimizers.h"
#include "kernels/plan/plan.h"

// Optimizer updates for CPU tensors. Each takes the lists of its namesake in kernels/optimizers.h in their order; with `copies`
// the last one is model_params.
namespace apex::kernels::cpu {

// With momentum the group has momentum_buffers, otherwise not.
void sgd(const plan::Group& group, const SgdControl& control, bool copies);

void adam(const plan::Group& group, const AdamControl& control, bool copies);
void adagrad(const plan::Group& group, const AdagradControl& control, bool copies);

// `norms`: the running norm of each tensor of the call.
void novograd(const plan::Group& group, const NovoGradControl& control, const float* norms, bool copies);

// Writes the norms of the group's tensors at their index of `norms`.
void lamb_stage_1(const plan::Group& group, const LambControl& control, const LambNorms& norms);
void lamb_stage_2(const plan::Group& group, const LambControl& control, const LambNorms& norms, bool copies);

// Norms of each tensor of the call: of its parameter, and of its gradient as it is stored.
void larc(const plan::Group& group, const LarcControl& control, const float* param_norms, const float* grad_norms);

}  // namespace apex::kernels::cpu
