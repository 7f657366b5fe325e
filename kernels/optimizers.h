#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Optimizer updates over whole lists of tensors, in one pass over memory: unscale, clip, decay, update, and the copy to model
// parameters. Lists are matched by index; what kernels/multi_tensor.h says of shapes, layouts, aliasing, autograd and errors
// holds here.
// Dtypes: float16, bfloat16 and float32 in any mix, for every list. Arithmetic is float32, every operation rounded; stores
// round to nearest even. State in 16 bits is rounded at every step. `params` are what the update works on: float32 masters, or
// model parameters themselves. `model_params` receive the new values as well, each rounded once to its dtype; an empty list if
// there is no copy to be made. Devices: CPU, and CUDA in a library built with it. Others throw c10::NotImplementedError, before
// anything is changed. CUDA work goes to the current stream of each device: one launch for all tensors of a device, two for
// NovoGrad and LARC, one for each stage of LAMB. The host does not wait for it, and it may be captured in a CUDA graph. Norms
// and tensors of a control are on the device of the tensors, which are then all on one; only found_inf may be elsewhere, and
// the host waits for it there. Results have the same bits with any number of threads, any instruction set and the CPU and the
// CUDA driver, but for the payloads of NaN.
namespace apex::kernels {

// What every update asks for beside its lists. Tensors in it have one element and are read where the update runs, at the time
// it runs: on the tensors' device the host does not wait for them, and a CUDA graph sees their values anew at each replay.
struct StepControl {
  // int32. If it is not 0, a call changes nothing. Undefined: never.
  at::Tensor found_inf;
  // Gradients are multiplied by it when they are read: 1 / loss scale, with a clip coefficient in it or not.
  double grad_scale = 1.0;
  // float32: multiplied into grad_scale, if defined.
  at::Tensor grad_scale_tensor;
  double lr = 0.0;
  // float32: in place of lr, if defined.
  at::Tensor lr_tensor;
  double weight_decay = 0.0;
};

// The part that optimizers with running means share.
struct MomentControl : StepControl {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t step = 1;  // the number of this step: 1 for the first
  // int32: in place of step, if defined. The number of steps taken before this one; a call that is not stopped adds 1 to it.
  at::Tensor step_tensor;
  bool bias_correction = true;
};

struct SgdControl : StepControl {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  bool first_run = false;  // momentum_buffers hold nothing yet: they become the gradients
  bool weight_decay_after_momentum = false;
};

// Without momentum, `momentum_buffers` is not looked at and may be empty. The change of a float16 parameter is rounded to
// float16 before it is added. Apex: multi_tensor_sgd.
void multi_tensor_sgd(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers, at::TensorList model_params,
                      const SgdControl& control);

struct AdamControl : MomentControl {
  bool adam_w_mode = true;  // weight decay joins the step (AdamW), not the gradient
};

// Apex: multi_tensor_adam, with and without _capturable and _master. Gradients are not written to.
void multi_tensor_adam(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                       at::TensorList model_params, const AdamControl& control);

struct AdagradControl : StepControl {
  double eps = 1e-10;
  bool adagrad_w_mode = false;  // weight decay joins the step, not the gradient
};

// Apex: multi_tensor_adagrad.
void multi_tensor_adagrad(at::TensorList grads, at::TensorList params, at::TensorList sums, at::TensorList model_params,
                          const AdagradControl& control);

// The values are Apex's norm_type.
enum class NormType { inf = 0, l2 = 2 };

struct NovoGradControl : MomentControl {
  bool grad_averaging = true;
  bool reg_inside_moment = false;
  NormType norm_type = NormType::l2;
  bool first_run = false;  // grad_norms hold nothing yet: they become the norms of these gradients
};

// `grad_norms`: float32, one element per tensor: the running norms, updated. If a gradient's norm is not finite and
// control.found_inf is defined, it is set to 1 and nothing else is changed.
// Apex: multi_tensor_novograd.
void multi_tensor_novograd(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, const at::Tensor& grad_norms,
                           at::TensorList model_params, const NovoGradControl& control);

struct LambControl : MomentControl {
  LambControl() { eps = 1e-6; }
  bool adam_w_mode = true;
  bool grad_averaging = true;
  bool use_nvlamb = false;  // the trust ratio counts even without weight decay
  // Norm of all gradients after grad_scale, float32 of one element: gradients are divided by global_grad_norm / max_grad_norm
  // where that exceeds 1. No clipping if it is undefined or max_grad_norm is not positive.
  at::Tensor global_grad_norm;
  double max_grad_norm = 1.0;
};

// Norms per tensor, float32 of shape [number of tensors].
struct LambNorms {
  at::Tensor params;
  at::Tensor updates;
};

// Advances both means and writes the update of each tensor, not yet applied, and its norm and that of the parameters.
// A call that found_inf stops returns undefined norms, or norms that mean nothing if the flag is on the tensors' CUDA device.
// Apex: the first half of multi_tensor_lamb. The norm of float16 updates is that of the rounded values, as there.
LambNorms multi_tensor_lamb_stage_1(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList updates, const LambControl& control);

// Applies the updates of stage 1 at the rate that each tensor's norms give. control.step_tensor was counted there.
// Apex: the second half of multi_tensor_lamb.
void multi_tensor_lamb_stage_2(at::TensorList updates, at::TensorList params, at::TensorList model_params,
                               const LambNorms& norms, const LambControl& control);

struct LarcControl : StepControl {
  double trust_coefficient = 0.02;
  double eps = 1e-8;
  bool clip = true;
};

// Adapts gradients, in place, so that an optimizer without weight decay takes LARC's step with them: unscaled, with weight
// decay added, times the tensor's rate. A tensor whose gradient or parameter norm is zero is unscaled only. Apex: the body of
// apex.parallel.LARC.step.
void multi_tensor_larc(at::TensorList grads, at::TensorList params, const LarcControl& control);

// A dynamic loss scale: tensors of one element each.
struct LossScaleTensors {
  at::Tensor scale;               // float32
  at::Tensor growth_tracker;      // int32: steps since the scale last changed
  at::Tensor hysteresis_tracker;  // int32: overflows until the scale shrinks
};

struct ScaleUpdateControl {
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t hysteresis = 1;
};

// Updates the scale after a step: an overflow (found_inf, int32 of one element, is not 0) shrinks it once `hysteresis`
// overflows came without a clean step between them; growth_interval clean steps let it grow, unless it would leave float32.
// Devices: all four tensors on the CPU, or on one CUDA device: then in one launch, and the host does not wait.
// Apex: update_scale_hysteresis.
void update_scale_hysteresis(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control);

}  // namespace apex::kernels
