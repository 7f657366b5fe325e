#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include <apex_cpp/amp/step_result.h>

namespace apex::amp {

/// Every parameter that `optimizer` steps, group by group, frozen parameters included: FP32 masters if the level has master
/// weights and the optimizer was used before, else the model's own parameters (Apex: `amp.master_params`, MP-01). Clip their
/// gradients after the `scale_loss` block. With a fused optimizer and materialize_master_grads=false, this call unscales the
/// model's gradients into the masters. No synchronisation.
/// Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`.
std::vector<at::Tensor> master_params(torch::optim::Optimizer& optimizer);

/// Scales the gradients of `master_params(optimizer)` so that their total L2 norm is at most `max_norm`. Returns the norm
/// before clipping, which is also kept in `step_result(optimizer).grad_norm`. FP32 arithmetic; dense gradients of any floating
/// dtype, on CPU or CUDA; one synchronisation, which reads the norm. If all gradients are FP32 on a CPU, norm and gradients
/// have the bits of `torch::nn::utils::clip_grad_norm_` over the parameters without duplicates. With a fused optimizer and
/// materialize_master_grads=false no gradient is written: the overflow check has already computed the norm, and `step` applies
/// the coefficient. Gradients with a non-finite norm are not changed, where `torch::nn::utils::clip_grad_norm_` makes finite
/// ones 0: the step is skipped for them, at a fixed loss scale only with `skip_nonfinite`. Call it after the `scale_loss`
/// block. Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`, or inside the block; ValueError
/// unless max_norm > 0, and for a sparse gradient.
double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm);

/// The result of `optimizer`'s most recent `step`. Host data, no synchronisation.
/// Errors: RuntimeError if `optimizer` is not a handle returned by `amp::initialize`.
StepResult step_result(torch::optim::Optimizer& optimizer);

}  // namespace apex::amp
