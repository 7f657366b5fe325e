#pragma once

#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

struct SgdSettings : StepSettings {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  bool first_run = false;  // the momentum buffers hold nothing yet and become the gradients
  bool weight_decay_after_momentum = false;
};

// param + change. As in Apex's kernel, the change of a parameter that is stored in float16 is rounded to float16 first.
template <class V>
HD V changed(V param, V change, bool half_param) {
  return add(param, half_param ? round_to_half(change) : change);
}

// SGD without momentum: param -= lr * (grad * grad_scale + weight_decay * param).
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

// `half_params`: whether the parameters are stored in float16.
HD inline PlainSgd plain_sgd(const SgdSettings& settings, bool half_params) {
  return {as_float(settings.grad_scale), as_float(settings.lr), as_float(settings.weight_decay), half_params};
}

// SGD with momentum: buffer = momentum * buffer + (1 - dampening) * step. The buffer replaces the step; with `nesterov`,
// momentum * buffer is added to the step instead. With `first_run` the buffer becomes the step, whatever it held. Weight decay
// is added to the gradient or, with `decay_after_momentum`, to the step that momentum gives.
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

HD inline MomentumSgd momentum_sgd(const SgdSettings& settings, bool half_params) {
  return {as_float(settings.grad_scale),
          as_float(settings.lr),
          as_float(settings.weight_decay),
          as_float(settings.momentum),
          complement(settings.dampening),
          settings.nesterov,
          settings.first_run,
          settings.weight_decay_after_momentum,
          half_params};
}

}  // namespace apex::kernels::rules
