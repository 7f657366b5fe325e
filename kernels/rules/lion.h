#pragma once

#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

struct LionSettings : StepSettings {
  double beta1 = 0.9;   // the share of the mean in the direction of a step
  double beta2 = 0.99;  // the share of the mean that stays in it
};

// Lion (Chen et al., arXiv:2302.06675): param -= lr * (sign(beta1 * mean + (1 - beta1) * grad) + weight_decay * param), then
// mean = beta2 * mean + (1 - beta2) * grad.
struct Lion {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;
  float beta1, rest1, beta2, rest2;  // rest = 1 - beta

  template <class V>
  HD void operator()(V grad, V& param, V& mean) const {
    const V unscaled = multiply(grad, V(grad_scale));
    V step = sign(add(multiply(V(beta1), mean), multiply(V(rest1), unscaled)));
    if (weight_decay != 0) step = add(step, multiply(V(weight_decay), param));
    param = add(param, multiply(V(-lr), step));
    mean = add(multiply(V(beta2), mean), multiply(V(rest2), unscaled));
  }
};

HD inline Lion lion(const LionSettings& settings) {
  return {as_float(settings.grad_scale), as_float(settings.lr),    as_float(settings.weight_decay), as_float(settings.beta1),
          complement(settings.beta1),    as_float(settings.beta2), complement(settings.beta2)};
}

}  // namespace apex::kernels::rules
