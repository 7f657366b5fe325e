#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// param + change. As in Apex's kernel, the change of a parameter that is stored in float16 is rounded to float16 first.
template <class V>
HD V changed(V param, V change, bool half_param) {
  return add(param, half_param ? round_to_half(change) : change);
}

// Gradient descent without momentum: param -= lr * (grad * grad_scale + weight_decay * param).
struct PlainSgd {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;
  bool half_params;

  template <class V>
  HD void operator()(V grad, V& param) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0) step = add(step, multiply(V(weight_decay), param));
    param = changed(param, multiply(V(-lr), step), half_params);
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
  bool nesterov, first_run, decay_after_momentum, half_params;

  template <class V>
  HD void operator()(V grad, V& param, V& buffer) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decay_after_momentum) step = add(step, multiply(V(weight_decay), param));
    buffer = first_run ? step : add(multiply(V(momentum), buffer), multiply(V(undampened), step));
    step = nesterov ? add(step, multiply(V(momentum), buffer)) : buffer;
    if (weight_decay != 0 && decay_after_momentum) step = add(step, multiply(V(weight_decay), param));
    param = changed(param, multiply(V(-lr), step), half_params);
  }
};

}  // namespace apex::kernels::rules
