#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// The factor by which LARC changes the learning rate of one tensor. With `clip` it never exceeds 1.
HD inline double larc_rate(double trust, double param_norm, double grad_norm, double weight_decay, double eps, double lr,
                           bool clip) {
  const double rate = trust * param_norm / (grad_norm + param_norm * weight_decay + eps);
  if (!clip) return rate;
  return rate / lr < 1 ? rate / lr : 1.0;
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
    if (weight_decay != 0) step = fma(V(weight_decay), param, step);
    grad = multiply(step, V(rate));
  }
};

}  // namespace apex::kernels::rules
