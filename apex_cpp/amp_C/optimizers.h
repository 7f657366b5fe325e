#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

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
