#pragma once

#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

struct LarcSettings : StepSettings {
  double trust_coefficient = 0.02;
  double eps = 1e-8;
  bool clip = true;  // the tensor's learning rate never exceeds lr
};

// The factor by which LARC changes the learning rate of one tensor. With `clip` it never exceeds 1.
HD inline double larc_rate(double trust, double param_norm, double grad_norm, double weight_decay, double eps, double lr,
                           bool clip) {
  const double decayed = add(grad_norm, multiply(param_norm, weight_decay));
  const double rate = divide(multiply(trust, param_norm), add(decayed, eps));
  if (!clip) return rate;
  const double factor = divide(rate, lr);
  return factor < 1 ? factor : 1.0;
}

// grad = (grad * grad_scale + weight_decay * param) * rate
struct Larc {
  using Real = float;
  static constexpr Use kUses[] = {Use::update, Use::read};
  static constexpr size_t kSums = 0;

  float grad_scale, weight_decay, rate;

  template <class V>
  HD void operator()(V& grad, V param) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0) step = add(step, multiply(V(weight_decay), param));
    grad = multiply(step, V(rate));
  }
};

// `grad_norm`: norm of the tensor's gradient as it is stored, before grad_scale.
HD inline Larc larc(const LarcSettings& settings, double param_norm, double grad_norm) {
  const double scale = settings.grad_scale < 0 ? -settings.grad_scale : settings.grad_scale;
  const double unscaled_norm = multiply(scale, grad_norm);
  if (param_norm == 0 || unscaled_norm == 0) return {as_float(settings.grad_scale), 0.0f, 1.0f};
  const double rate = larc_rate(settings.trust_coefficient, param_norm, unscaled_norm, settings.weight_decay, settings.eps,
                                settings.lr, settings.clip);
  return {as_float(settings.grad_scale), as_float(settings.weight_decay), as_float(rate)};
}

}  // namespace apex::kernels::rules
