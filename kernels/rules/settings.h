#pragma once

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
