#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include <apex_cpp/amp/step_result.h>

namespace apex::amp {

/// Every parameter that `optimizer` steps, group by group, frozen ones included: FP32 masters where the level has them and the
/// optimizer was used before, else the model's own (Apex: `amp.master_params`, MP-01). Clip these, after the `scale_loss`
/// block. With a fused optimizer and materialize_master_grads=false, gradients that wait in the model are unscaled into the
/// masters by this call, no synchronisation.
/// Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`.
std::vector<at::Tensor> master_params(torch::optim::Optimizer& optimizer);

/// Scales the gradients of `master_params(optimizer)` so that their total L2 norm is at most `max_norm`, and returns the norm
/// from before, also kept in `step_result(optimizer).grad_norm`. FP32 arithmetic, dense gradients of any floating dtype, CPU or
/// CUDA; reads the norm back, one synchronisation. Where all gradients are FP32 and on a CPU, norm and gradients have the bits
/// of `torch::nn::utils::clip_grad_norm_` for parameters that are listed once each. With a fused optimizer and
/// materialize_master_grads=false nothing is written: the overflow check has found the norm already, and `step` multiplies by
/// the coefficient as it reads the gradients. A non-finite norm leaves the gradients alone: the overflow check of `scale_loss`
/// answers for them. Call it after the `scale_loss` block. Errors: RuntimeError for an optimizer that is no handle or a call
/// inside the block; ValueError unless max_norm > 0.
double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm);

/// The result of `optimizer`'s most recent `step`. Host data, no synchronisation.
/// Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`.
StepResult step_result(torch::optim::Optimizer& optimizer);

}  // namespace apex::amp
