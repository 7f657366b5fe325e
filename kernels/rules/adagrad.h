#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// sum += grad^2, param -= lr * grad / (sqrt(sum) + eps). Weight decay is a part of the gradient, or (decoupled) joins the step.
struct Adagrad {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay, eps;
  bool decoupled;

  template <class V>
  HD void operator()(V grad, V& param, V& sum) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decoupled) unscaled = add(unscaled, multiply(V(weight_decay), param));
    sum = add(sum, multiply(unscaled, unscaled));
    V step = divide(unscaled, add(square_root(sum), V(eps)));
    if (weight_decay != 0 && decoupled) step = add(step, multiply(V(weight_decay), param));
    param = add(param, multiply(V(-lr), step));
  }
};

}  // namespace apex::kernels::rules
