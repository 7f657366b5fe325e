#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <optional>

// One step of an optimizer over all tensors. Arithmetic is float32, stores round to nearest even.
// Dtypes: float16, bfloat16 and float32, any of them for each list; where it says so also float64, computed in float32 as in
// Apex. Arguments that are a choice of two (`mode`, `bias_correction`, ...) are 0 or 1, `step` counts from 1: ValueError for
// others.

/// SGD. Lists: grads, params, momentum_buffers, and optionally model_params: copies of the new params, each rounded once.
/// Gradients are multiplied by `scale` when read. `first_run`: the buffers become the gradients; what they held is not looked
/// at. Without `momentum` the buffers are neither read nor written. Flag: if it is not 0, nothing is changed. The
/// change of a float16 param is rounded to float16 before it is added. Apex: multi_tensor_sgd, which takes float16 and float32
/// in four combinations only.
void multi_tensor_sgd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float wd,
                           float momentum, float dampening, float lr, bool nesterov, bool first_run, bool wd_after_momentum,
                           float scale);

/// Adam: `mode` 0 adds weight decay to the gradient, 1 to the step (AdamW). Lists: grads, params, exp_avgs, exp_avg_sqs; grads
/// and params also float64. Flag: not looked at. Apex: multi_tensor_adam, which reads moments as float32 whatever they are;
/// here moments of 16 bits are what they say.
void multi_tensor_adam_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int mode, const int bias_correction, const float weight_decay);

/// Adam with arguments that are read on the device when the update runs: a CUDA graph sees their values at each replay. `lr`
/// and `inv_scale` are float32, `step` (the number of this step) is int32, one element each, on the tensors' device. Gradients
/// are multiplied by `inv_scale`, and written back so: they are outputs, each listed once. Lists, dtypes: as
/// multi_tensor_adam_cuda. Flag: if it is not 0, nothing is changed. Apex: multi_tensor_adam_capturable, which rounds the
/// moments to the dtype of the gradients at each step; here they keep theirs.
void multi_tensor_adam_capturable_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                       at::Tensor lr, const float beta1, const float beta2, const float epsilon,
                                       at::Tensor step, const int mode, const int bias_correction, const float weight_decay,
                                       at::Tensor inv_scale);

/// The same with float32 masters, which the update works on; params receive their new values. Lists: grads, params, exp_avgs,
/// exp_avg_sqs, masters. Apex: multi_tensor_adam_capturable_master.
void multi_tensor_adam_capturable_master_cuda(int chunk_size, at::Tensor noop_flag,
                                              std::vector<std::vector<at::Tensor>> tensor_lists, at::Tensor lr,
                                              const float beta1, const float beta2, const float epsilon, at::Tensor step,
                                              const int mode, const int bias_correction, const float weight_decay,
                                              at::Tensor inv_scale);

/// Adagrad: `mode` 0 adds weight decay to the gradient, 1 to the step. Lists: grads, params, sums; all of them also float64.
/// Flag: not looked at. Apex: multi_tensor_adagrad.
void multi_tensor_adagrad_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               const float lr, const float epsilon, const int mode, const float weight_decay);

/// NovoGrad: `mode` 0 divides gradients by their tensor's norm and adds weight decay before they join the mean, 1 after.
/// `norm_type`: 2 for L2 norms, 0 for the largest magnitude; ValueError for others.
/// `grad_norms`: the running norms, float32, one element per tensor, contiguous, on the tensors' device. Updated.
/// Lists: grads, params, exp_avgs; all of them also float64.
/// Flag: set to 1 if a gradient's norm is not finite, not read: the update is made all the same.
/// Apex: multi_tensor_novograd.
void multi_tensor_novograd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                at::Tensor grad_norms, const float lr, const float beta1, const float beta2,
                                const float epsilon, const int step, const int bias_correction, const float weight_decay,
                                const int grad_averaging, const int mode, const int norm_type);

// One step of LAMB over all tensors, whole or in Apex's older two stages. What optimizers.h says of dtypes, arithmetic and
// `int` arguments holds here; there is no float64.

/// LAMB: `mode` 0 adds weight decay to the gradient, 1 to the update. Lists: grads, params, exp_avgs, exp_avg_sqs.
/// **The update overwrites the gradients.** Gradients are divided by `global_grad_norm` (float32, one element, on the tensors'
/// device) / `max_grad_norm` where that exceeds 1. `use_nvlamb_python`: the trust ratio counts even without weight decay.
/// Flag: set to 1 if the norm of a parameter or an update is not finite, not read: the update is made all the same.
/// Apex: multi_tensor_lamb, which divides by infinity where `max_grad_norm` is 0; here there is no clipping unless it is
/// positive.
void multi_tensor_lamb_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                            at::Tensor global_grad_norm, const float max_grad_norm, std::optional<bool> use_nvlamb_python);

/// LAMB with arguments that are read on the device when the update runs, and optionally copies of the new params. Lists: grads,
/// params, exp_avgs, exp_avg_sqs, and optionally model_params. `lr`, `global_grad_norm`, `max_grad_norm`, `inv_scale` are
/// float32, `step` (the number of this step) int32, one element each on the tensors' device. Gradients are multiplied by
/// `inv_scale` when read, while `global_grad_norm` and `max_grad_norm` are those of the gradients as they are. The update
/// overwrites the gradients. Flag: if it is not 0, nothing is changed. Set to 1 if a parameter's norm is not finite, and
/// nothing is changed; or if an update's norm is not finite, and the params stay as they are. `found_inf` is not looked at, as
/// in Apex: what it holds belongs in the flag. Apex: multi_tensor_lamb_mp.
void multi_tensor_lamb_mp_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               at::Tensor lr, const float beta1, const float beta2, const float epsilon, at::Tensor step,
                               const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                               at::Tensor global_grad_norm, at::Tensor max_grad_norm, std::optional<bool> use_nvlamb_python,
                               at::Tensor found_inf, at::Tensor inv_scale);

/// The first stage: advances the means and writes each tensor's update, not yet applied. Lists: grads, params, exp_avgs,
/// exp_avg_sqs, updates. `per_tensor_decay`: float32, one element per tensor, contiguous, any device; added to the update.
/// `step` counts from 0. `global_grad_norm`: float32, one element, any device.
/// Flag: not looked at. The host waits for the values of `per_tensor_decay`.
/// Apex: multi_tensor_lamb_stage1_cuda, which reads `global_grad_norm` on the host, wherever it is.
void multi_tensor_lamb_stage1_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_decay, const int step, const float beta1, const float beta2,
                                   const float epsilon, at::Tensor global_grad_norm, const float max_global_grad_norm);

/// The second stage: params -= rate * updates, where the rate is `lr` times the ratio of the tensor's norms, if there is
/// `weight_decay` or `use_nvlamb_python`. Lists: params, updates. Norms: float32, one element per tensor, contiguous, on the
/// tensors' device. Flag: not looked at.
/// Apex: multi_tensor_lamb_stage2_cuda.
void multi_tensor_lamb_stage2_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_param_norm, at::Tensor per_tensor_update_norm, const float lr,
                                   const float weight_decay, std::optional<bool> use_nvlamb_python);
