#pragma once

#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

struct AdagradSettings : StepSettings {
  double eps = 1e-10;
  bool adagrad_w_mode = false;  // adds weight decay to the step, not to the gradient
};

// sum += grad^2, param -= lr * grad / (sqrt(sum) + eps). Weight decay is added to the gradient or, if `decoupled`, to the step.
struct Adagrad {
  using Real = float;
  static constexpr bool kDivides = true;
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

HD inline Adagrad adagrad(const AdagradSettings& settings) {
  return {as_float(settings.grad_scale), as_float(settings.lr), as_float(settings.weight_decay), as_float(settings.eps),
          settings.adagrad_w_mode};
}

}  // namespace apex::kernels::rules
