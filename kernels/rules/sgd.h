#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// Gradient descent without momentum: param -= lr * (grad * grad_scale + weight_decay * param).
struct PlainSgd {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;

  template <class V>
  HD void operator()(V grad, V& param) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0) step = fma(V(weight_decay), param, step);
    param = fma(V(-lr), step, param);
  }
};

// With momentum: buffer = momentum * buffer + (1 - dampening) * step, which stands in for the step, or with nesterov is added
// to it. On the first run the buffer is the step itself, and what it held is not looked at. Weight decay joins the gradient,
// or, with decay_after_momentum, the step that momentum gives.
struct MomentumSgd {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay, momentum, undampened;  // undampened = 1 - dampening
  bool nesterov, first_run, decay_after_momentum;

  template <class V>
  HD void operator()(V grad, V& param, V& buffer) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decay_after_momentum) step = fma(V(weight_decay), param, step);
    buffer = first_run ? step : fma(V(momentum), buffer, multiply(V(undampened), step));
    step = nesterov ? fma(V(momentum), buffer, step) : buffer;
    if (weight_decay != 0 && decay_after_momentum) step = fma(V(weight_decay), param, step);
    param = fma(V(-lr), step, param);
  }
};

}  // namespace apex::kernels::rules
