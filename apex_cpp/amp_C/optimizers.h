#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <optional>

// One step of an optimizer over all tensors. Arithmetic is float32; stores round to nearest even.
// Dtypes: float16, bfloat16 and float32, chosen for each list separately. Lists noted below also take float64, computed in
// float32 as in Apex. `mode`, `bias_correction` and other switches are 0 or 1, and `step` counts from 1: ValueError otherwise,
// except for a step in a CUDA tensor, which is not read, or of an update that the flag stops.

/// SGD. Lists: grads, params, momentum_buffers, and optionally model_params, which receive copies of the new params, each
/// rounded once. Gradients are multiplied by `scale` when read. `first_run`: the buffers become the gradients, whatever they
/// held. Without `momentum` the buffers are neither read nor written. The change of a float16 param is rounded to float16
/// before it is added. Flag: if it is not 0, nothing is changed. Apex: multi_tensor_sgd, which takes only four combinations of
/// float16 and float32.
void multi_tensor_sgd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float wd,
                           float momentum, float dampening, float lr, bool nesterov, bool first_run, bool wd_after_momentum,
                           float scale);

/// Adam: `mode` 0 adds weight decay to the gradient, 1 to the step (AdamW). Lists: grads, params, exp_avgs, exp_avg_sqs; grads
/// and params also float64. Flag: ignored. Apex: multi_tensor_adam, which reads moments as float32 whatever their dtype is;
/// here 16-bit moments are read as 16-bit values.
void multi_tensor_adam_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int mode, const int bias_correction, const float weight_decay);

/// Adam with arguments that the device reads when the update runs, so that a CUDA graph reads them anew at each replay. `lr`
/// and `inv_scale` are float32, `step` (the number of this step) is int32, one element each, on the tensors' device. Gradients
/// are multiplied by `inv_scale` in place, so they are outputs. Lists and dtypes: as multi_tensor_adam_cuda. Flag: if it is not
/// 0, nothing is changed. Apex: multi_tensor_adam_capturable, which rounds the moments to the gradients' dtype at each step;
/// here they keep their dtype.
void multi_tensor_adam_capturable_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                       at::Tensor lr, const float beta1, const float beta2, const float epsilon,
                                       at::Tensor step, const int mode, const int bias_correction, const float weight_decay,
                                       at::Tensor inv_scale);

/// The same with float32 masters: updates the masters and copies them to params. Lists: grads, params, exp_avgs, exp_avg_sqs,
/// masters. Apex: multi_tensor_adam_capturable_master.
void multi_tensor_adam_capturable_master_cuda(int chunk_size, at::Tensor noop_flag,
                                              std::vector<std::vector<at::Tensor>> tensor_lists, at::Tensor lr,
                                              const float beta1, const float beta2, const float epsilon, at::Tensor step,
                                              const int mode, const int bias_correction, const float weight_decay,
                                              at::Tensor inv_scale);

/// Adagrad: `mode` 0 adds weight decay to the gradient, 1 to the step. Lists: grads, params, sums; all of them also float64.
/// Flag: ignored. Apex: multi_tensor_adagrad.
void multi_tensor_adagrad_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               const float lr, const float epsilon, const int mode, const float weight_decay);

/// LARS. Lists: grads, params, momentum_buffers, and optionally model_params, which receive copies of the new params, each
/// rounded once. Gradients are multiplied by `scale` when read, and weight decay is added to them. A tensor's rate is `lr` *
/// `trust_coefficient` * p / (g + p * `weight_decay` + `epsilon`) with its norms p and g, or `lr` if a norm is 0 or
/// `is_skipped` is true. The buffers must be zeros at the first step.
/// `grad_norms`, `param_norms`: of the gradients after `scale`, and of the params; float32, one element per tensor, contiguous,
/// on the tensors' device. `dampening`, `first_run` and `wd_after_momentum` have no effect, as in Apex. Without `momentum` the
/// buffers become the changes. Flag: if it is not 0, nothing is changed. Apex on ROCm: multi_tensor_lars, which ignores `scale`
/// and takes six combinations of dtypes.
void multi_tensor_lars_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            at::Tensor grad_norms, at::Tensor param_norms, float lr, float trust_coefficient, float epsilon,
                            float weight_decay, float momentum, float dampening, bool nesterov, bool first_run,
                            bool wd_after_momentum, float scale, const bool is_skipped);

/// NovoGrad: `mode` 0 divides gradients by their tensor's norm and adds weight decay before the running mean, 1 after it.
/// `norm_type`: 2 for L2 norms, 0 for the largest magnitude; ValueError otherwise.
/// `grad_norms`: the running norms, float32, one element per tensor, contiguous, on the tensors' device. Updated.
/// Lists: grads, params, exp_avgs; all of them also float64.
/// Flag: set to 1 if a gradient's norm is not finite, but not read: the update always runs.
/// Apex: multi_tensor_novograd.
void multi_tensor_novograd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                at::Tensor grad_norms, const float lr, const float beta1, const float beta2,
                                const float epsilon, const int step, const int bias_correction, const float weight_decay,
                                const int grad_averaging, const int mode, const int norm_type);

// One step of LAMB over all tensors, whole or in Apex's older two stages. No float64.

/// LAMB: `mode` 0 adds weight decay to the gradient, 1 to the update. Lists: grads, params, exp_avgs, exp_avg_sqs.
/// **The update overwrites the gradients.** Gradients are divided by `global_grad_norm` / `max_grad_norm` if that exceeds 1.
/// `global_grad_norm`: float32, one element, on the tensors' device. `use_nvlamb_python`: applies the trust ratio even without
/// weight decay. Flag: set to 1 if the norm of a parameter or an update is not finite, but not read: the update always runs.
/// Apex: multi_tensor_lamb, which divides by infinity if `max_grad_norm` is 0; here only a positive `max_grad_norm` clips.
void multi_tensor_lamb_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                            at::Tensor global_grad_norm, const float max_grad_norm, std::optional<bool> use_nvlamb_python);

/// LAMB with arguments that the device reads when the update runs, and optionally copies of the new params. Lists: grads,
/// params, exp_avgs, exp_avg_sqs, and optionally model_params. `lr`, `global_grad_norm`, `max_grad_norm` and `inv_scale` are
/// float32, `step` (the number of this step) is int32, one element each on the tensors' device. Gradients are multiplied by
/// `inv_scale` when read; `global_grad_norm` and `max_grad_norm` refer to the gradients before that. The update overwrites the
/// gradients. Flag: if it is not 0, nothing is changed. If a parameter's norm is not finite, the flag is set to 1 and nothing
/// is changed. If an update's norm is not finite, the flag is set to 1 and the params are not changed. `found_inf` is ignored,
/// as in Apex: pass its value in the flag. Apex: multi_tensor_lamb_mp.
void multi_tensor_lamb_mp_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               at::Tensor lr, const float beta1, const float beta2, const float epsilon, at::Tensor step,
                               const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                               at::Tensor global_grad_norm, at::Tensor max_grad_norm, std::optional<bool> use_nvlamb_python,
                               at::Tensor found_inf, at::Tensor inv_scale);

/// The first stage: updates the running means and writes each tensor's update without applying it. Lists: grads, params,
/// exp_avgs, exp_avg_sqs, updates. `per_tensor_decay`: the weight decay of each tensor, which is added to the update; float32,
/// contiguous, on any device. `step` counts from 0. `global_grad_norm`: float32, one element, on any device. Flag: ignored. The
/// host waits for the values of `per_tensor_decay`. Apex: multi_tensor_lamb_stage1_cuda, which reads `global_grad_norm` on the
/// host.
void multi_tensor_lamb_stage1_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_decay, const int step, const float beta1, const float beta2,
                                   const float epsilon, at::Tensor global_grad_norm, const float max_global_grad_norm);

/// The second stage: params -= rate * updates. The rate is `lr`, times the ratio of the tensor's norms if `weight_decay` is not
/// 0 or `use_nvlamb_python` is true. Lists: params, updates. Norms: float32, one element per tensor, contiguous, on the
/// tensors' device. Flag: ignored. Apex: multi_tensor_lamb_stage2_cuda.
void multi_tensor_lamb_stage2_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_param_norm, at::Tensor per_tensor_update_norm, const float lr,
                                   const float weight_decay, std::optional<bool> use_nvlamb_python);
