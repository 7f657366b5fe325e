#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/lars.h"
#include "kernels/rules/lion.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/scale.h"
#include "kernels/rules/schedule_free.h"
#include "kernels/rules/sgd.h"

// Optimizer updates over whole lists of tensors, in one pass over memory: unscale, clip, decay, update, and the copy to model
// parameters. Lists are matched by index. Shapes, layouts, aliasing, autograd and errors are as in kernels/multi_tensor.h.
//
// Lists: `params` are the tensors to update: float32 masters, or the model's parameters themselves. `model_params` receive a
// copy of the new values, each rounded once to its dtype; an empty list makes no copy. Model parameters of int16 or int8 are
// not copies but remainders: the values to update are those of a bfloat16 `param` and its remainder (rules/remainder.h), read
// and written together. All or none of a call's model parameters are remainders.
// Dtypes: float16, bfloat16 and float32 in any mix, for every list. Arithmetic is float32, every operation rounded; stores
// round to nearest even. State in 16 bits is rounded at every step.
// Devices: CPU, and CUDA in a library built with it. Others throw c10::NotImplementedError before anything is changed. CUDA
// work goes to the current stream of each device: one launch for all tensors of a device, two for NovoGrad, LARC and
// LARS, one for each stage of LAMB. The host does not wait for it, and a CUDA graph can capture it.
// Results have the same bits with any number of threads, any instruction set and both drivers, except for the payloads of NaN.
namespace apex::kernels {

using rules::AdagradSettings;
using rules::AdamSettings;
using rules::LambSettings;
using rules::LarcSettings;
using rules::LarsSettings;
using rules::LerpSettings;
using rules::LionSettings;
using rules::MomentSettings;
using rules::NormType;
using rules::NovoGradSettings;
using rules::ScaleUpdate;
using rules::ScheduleFreeSettings;
using rules::SgdSettings;
using rules::StepSettings;

// Settings that the caller keeps in tensors of one element; undefined ones have no effect. They are read when the update runs:
// the host does not wait for the device, and a CUDA graph reads their values anew at each replay. They are on the device of the
// updated tensors, which then must be a single device. Only found_inf may be on another device; the host then waits for it.
struct StepTensors {
  at::Tensor found_inf;   // int32. If it is not 0, the call changes nothing.
  at::Tensor grad_scale;  // float32, multiplied into the settings' grad_scale
  at::Tensor lr;          // float32, replaces the settings' lr
  // int32, for optimizers with MomentSettings: the number of steps taken before this one. It replaces the settings' step, and a
  // call that changes anything adds 1 to it.
  at::Tensor step;
};

// Without momentum, `momentum_buffers` is ignored and may be empty. The change of a float16 parameter is rounded to float16
// before it is added. Apex: multi_tensor_sgd.
void multi_tensor_sgd(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers, at::TensorList model_params,
                      const SgdSettings& settings, const StepTensors& tensors = {});

// Gradients are not changed. The moments may be uint8: codes of 8 bits, rules::quantized_bytes(numel) bytes in one dimension.
// The step rounds them at random by its number, and by the places of its tensors and elements: a part of a tensor that begins
// at a multiple of 32 elements gets the codes of the whole by settings.first_position and first_element. All or none of a
// call's moments are codes. With rounds_params_at_random or rounds_moments_at_random, what is stored in bfloat16 is rounded at
// random, too (rules/random.h). Apex: multi_tensor_adam, with and without _capturable and _master.
void multi_tensor_adam(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                       at::TensorList model_params, const AdamSettings& settings, const StepTensors& tensors = {});

// Apex: multi_tensor_adagrad.
void multi_tensor_adagrad(at::TensorList grads, at::TensorList params, at::TensorList sums, at::TensorList model_params,
                          const AdagradSettings& settings, const StepTensors& tensors = {});

// The direction of a step is 0 where the mix of mean and gradient is a zero of either sign, and NaN where it is NaN.
// Source: Chen et al., arXiv:2302.06675; Apex has no Lion.
void multi_tensor_lion(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList model_params,
                       const LionSettings& settings, const StepTensors& tensors = {});

// The params are y: where gradients are taken, between each `z`, which the step moves, and the average x of all z. The share of
// x is beta1, which the settings of two calls and of multi_tensor_lerp must agree on.
// Source: Defazio et al., arXiv:2405.15682; Apex has none.
void multi_tensor_schedule_free_adamw(at::TensorList grads, at::TensorList params, at::TensorList zs,
                                      at::TensorList exp_avg_sqs, at::TensorList model_params,
                                      const ScheduleFreeSettings& settings, const StepTensors& tensors = {});

// params += settings.weight * (ends - params). Turns the y of a schedule-free optimizer into x with 1 - 1 /
// beta1, and x into y with 1 - beta1, where `ends` are the z.
void multi_tensor_lerp(at::TensorList ends, at::TensorList params, at::TensorList model_params, const LerpSettings& settings,
                       const StepTensors& tensors = {});

// `grad_norms`: the running norms, float32, one element per tensor; updated. If a gradient's norm is not finite and
// tensors.found_inf is defined, the call sets found_inf to 1 and changes nothing else.
// Apex: multi_tensor_novograd.
void multi_tensor_novograd(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, const at::Tensor& grad_norms,
                           at::TensorList model_params, const NovoGradSettings& settings, const StepTensors& tensors = {});

// Norms per tensor, float32 of shape [number of tensors].
struct LambNorms {
  at::Tensor params;
  at::Tensor updates;
};

// Updates both running means and writes each tensor's update to `updates` without applying it. Returns the norms of parameters
// and updates; the norm of float16 updates is that of the rounded values, as in Apex.
// `global_grad_norm`: the norm of all gradients after grad_scale, float32 of one element; undefined: no clipping.
// If found_inf stops the call, the norms are undefined tensors, or without meaning if found_inf is on the tensors' CUDA device.
// Apex: the first half of multi_tensor_lamb.
LambNorms multi_tensor_lamb_stage_1(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList updates, const at::Tensor& global_grad_norm,
                                    const LambSettings& settings, const StepTensors& tensors = {});

// Applies the updates of stage 1, each tensor's with the learning rate that its norms give. Ignores tensors.step, which stage 1
// has counted. Apex: the second half of multi_tensor_lamb.
void multi_tensor_lamb_stage_2(at::TensorList updates, at::TensorList params, at::TensorList model_params,
                               const LambNorms& norms, const LambSettings& settings, const StepTensors& tensors = {});

// LAMB, both stages, of bfloat16 parameters with `remainders`. Takes no memory for updates: the second stage computes them
// again from the moments, which must be float32. Parameters, remainders and moments get the bits of the stages above with
// float32 parameters. Counts the step. Errors: c10::Error unless there are remainders, and for other moments.
void multi_tensor_split_lamb(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                             at::TensorList remainders, const at::Tensor& global_grad_norm, const LambSettings& settings,
                             const StepTensors& tensors = {});

// Changes the gradients in place, so that an optimizer without weight decay then takes LARC's step: unscales them, adds weight
// decay, and multiplies them by the tensor's rate. If the gradient's or the parameter's norm is zero, the gradient is only
// unscaled. Apex: the body of apex.parallel.LARC.step.
void multi_tensor_larc(at::TensorList grads, at::TensorList params, const LarcSettings& settings,
                       const StepTensors& tensors = {});

// Norms per tensor, float32 of shape [number of tensors], on the updated tensors' device.
struct LarsNorms {
  at::Tensor grads;  // after grad_scale
  at::Tensor params;
};

// SGD with momentum, in which each tensor has the rate
//   lr * trust_coefficient * |param| / (|grad| + weight_decay * |param| + eps)
// or lr if one of its norms is 0. Undefined norms are computed here, in one more pass; defined ones are read when the update
// runs.
// Apex on ROCm: multi_tensor_lars. Its formula uses no dampening, first_run and wd_after_momentum, though the function has such
// arguments.
void multi_tensor_lars(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers,
                       at::TensorList model_params, const LarsNorms& norms, const LarsSettings& settings,
                       const StepTensors& tensors = {});

// A dynamic loss scale: tensors of one element each.
struct LossScaleTensors {
  at::Tensor scale;               // float32
  at::Tensor growth_tracker;      // int32: steps since the scale last changed
  at::Tensor hysteresis_tracker;  // int32: overflows until the scale shrinks
};

// Updates the loss scale after a step. `found_inf`: int32 of one element, not 0 after an overflow. The scale shrinks at the
// `hysteresis`-th overflow without a clean step in between. It grows after growth_interval clean steps, unless it would leave
// the range of float32.
// Devices: all four tensors on the CPU, or on one CUDA device, in one launch that the host does not wait for.
// Apex: update_scale_hysteresis.
void update_scale_hysteresis(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdate& update);

}  // namespace apex::kernels
