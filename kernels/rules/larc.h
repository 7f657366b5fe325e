#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

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

}  // namespace apex::kernels::rules
