#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// Adam, where weight decay is a part of the gradient, and AdamW (decoupled), where it joins the step.
struct Adam {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;
  bool decoupled;
  Moments moments;

  template <class V>
  HD void operator()(V grad, V& param, V& exp_avg, V& exp_avg_sq) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decoupled) unscaled = add(unscaled, multiply(V(weight_decay), param));
    V step = moments.advance(unscaled, exp_avg, exp_avg_sq);
    if (weight_decay != 0 && decoupled) step = add(step, multiply(V(weight_decay), param));
    param = add(param, multiply(V(-lr), step));
  }
};

}  // namespace apex::kernels::rules
