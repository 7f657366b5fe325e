#pragma once

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/sgd.h"

#include <cstdint>

// What optimizer updates are asked for, as plain values that a kernel can be given: kernels/optimizers.h says what they mean.
namespace apex::kernels::rules {

struct StepSettings {
  double grad_scale, lr, weight_decay;
};

struct MomentSettings : StepSettings {
  double beta1, beta2, eps;
  int64_t step;
  bool bias_correction;
};

struct SgdSettings : StepSettings {
  double momentum, dampening;
  bool nesterov, first_run, weight_decay_after_momentum;
};

struct AdamSettings : MomentSettings {
  bool adam_w_mode;
};

struct AdagradSettings : StepSettings {
  double eps;
  bool adagrad_w_mode;
};

struct NovoGradSettings : MomentSettings {
  bool grad_averaging, reg_inside_moment, l2, first_run;
};

struct LambSettings : MomentSettings {
  bool adam_w_mode, grad_averaging, use_nvlamb;
  double max_grad_norm;
};

struct LarcSettings : StepSettings {
  double trust_coefficient, eps;
  bool clip;
};

}  // namespace apex::kernels::rules

// The rules that settings ask for, with the same bits on the host and on a device. As in Apex's kernels, what an optimizer is
// given is rounded to float32 first, 1 - beta is a float32 difference, and corrections are computed in float64 from there.
namespace apex::kernels::rules {

HD inline float as_float(double value) { return static_cast<float>(value); }

HD inline float complement(double value) { return subtract(1.0f, as_float(value)); }

// 1 - beta^step: what a running mean that started at zero lacks.
HD inline double bias(const MomentSettings& settings, double beta) {
  return settings.bias_correction ? subtract(1.0, power(as_float(beta), settings.step)) : 1.0;
}

HD inline float mean_weight(const MomentSettings& settings, bool averaging) {
  return averaging ? complement(settings.beta1) : 1.0f;
}

HD inline Moments moments(const MomentSettings& settings, bool averaging) {
  return {as_float(settings.beta1),   mean_weight(settings, averaging),         as_float(settings.beta2),
          complement(settings.beta2), as_float(bias(settings, settings.beta1)), as_float(bias(settings, settings.beta2)),
          as_float(settings.eps)};
}

// `half_params`: whether the parameters are stored in float16.
HD inline PlainSgd plain_sgd(const SgdSettings& settings, bool half_params) {
  return {as_float(settings.grad_scale), as_float(settings.lr), as_float(settings.weight_decay), half_params};
}

HD inline MomentumSgd momentum_sgd(const SgdSettings& settings, bool half_params) {
  return {as_float(settings.grad_scale),
          as_float(settings.lr),
          as_float(settings.weight_decay),
          as_float(settings.momentum),
          complement(settings.dampening),
          settings.nesterov,
          settings.first_run,
          settings.weight_decay_after_momentum,
          half_params};
}

HD inline Adam adam(const AdamSettings& settings) {
  return {as_float(settings.grad_scale), as_float(settings.lr), as_float(settings.weight_decay), settings.adam_w_mode,
          moments(settings, /*averaging=*/true)};
}

HD inline Adagrad adagrad(const AdagradSettings& settings) {
  return {as_float(settings.grad_scale), as_float(settings.lr), as_float(settings.weight_decay), as_float(settings.eps),
          settings.adagrad_w_mode};
}

// `norm`: the tensor's running norm.
HD inline NovoGrad novograd(const NovoGradSettings& settings, float norm) {
  return {as_float(settings.grad_scale),
          as_float(settings.lr),
          as_float(settings.weight_decay),
          as_float(settings.beta1),
          mean_weight(settings, settings.grad_averaging),
          as_float(bias(settings, settings.beta1)),
          add(divide(norm, as_float(square_root(bias(settings, settings.beta2)))), as_float(settings.eps)),
          settings.reg_inside_moment};
}

// The running norm after this step. `norm`: of the tensor's gradient.
HD inline float next_norm(const NovoGradSettings& settings, float running, float norm) {
  const float kept = as_float(settings.beta2), joined = complement(settings.beta2);
  return settings.first_run ? norm : blended_norm(running, norm, kept, joined, settings.l2);
}

// `global_grad_norm`: 0 where there is none. `half_updates`: whether the updates are stored in float16.
HD inline LambStage1 lamb_stage_1(const LambSettings& settings, double global_grad_norm, bool half_updates) {
  const bool clips = settings.max_grad_norm > 0 && global_grad_norm > settings.max_grad_norm;
  const float clip = clips ? divide(as_float(global_grad_norm), as_float(settings.max_grad_norm)) : 1.0f;
  return {as_float(settings.grad_scale), clip,         as_float(settings.weight_decay),
          settings.adam_w_mode,          half_updates, moments(settings, settings.grad_averaging)};
}

HD inline LambStage2 lamb_stage_2(const LambSettings& settings, float param_norm, float update_norm) {
  const bool adapts = settings.use_nvlamb || settings.weight_decay != 0;
  const float lr = as_float(settings.lr);
  return {adapts ? trusted_rate(lr, param_norm, update_norm) : lr};
}

// Norms are those of the parameter and the unscaled gradient.
HD inline Larc larc(const LarcSettings& settings, double param_norm, double grad_norm) {
  if (param_norm == 0 || grad_norm == 0) return {as_float(settings.grad_scale), 0.0f, 1.0f};
  const double rate = larc_rate(settings.trust_coefficient, param_norm, grad_norm, settings.weight_decay, settings.eps,
                                settings.lr, settings.clip);
  return {as_float(settings.grad_scale), as_float(settings.weight_decay), as_float(rate)};
}

}  // namespace apex::kernels::rules
