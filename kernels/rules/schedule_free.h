#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

template <class V>
HD inline V between(V from, V to, float weight) {
  return add(from, multiply(V(weight), subtract(to, from)));
}

struct ScheduleFreeSettings : MomentSettings {
  double average_weight = 1.0;  // the share of the next z in the average x
};

// Schedule-free AdamW (Defazio et al., arXiv:2405.15682). The parameter is y, between z and x, the average of all z:
// y = (1 - beta1) * z + beta1 * x. With step = grad / (sqrt(square / (1 - beta2^t)) + eps) + weight_decay * y the rule makes
// z -= lr * step and x += average_weight * (z - x), of which only y and z are stored.
struct ScheduleFreeAdamW {
  using Real = float;
  static constexpr bool kDivides = true;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, weight_decay;
  float square_decay, square_weight;  // of the mean of squares: beta2 and 1 - beta2
  Divisor square_correction;          // 1 - beta2^t
  float eps;
  float average_weight;
  float y_rate, z_rate;  // what a step is multiplied by

  template <class V>
  HD void operator()(V grad, V& param, V& z, V& exp_avg_sq) const {
    const V unscaled = multiply(grad, V(grad_scale));
    exp_avg_sq = add(multiply(V(square_decay), exp_avg_sq), multiply(multiply(V(square_weight), unscaled), unscaled));
    V step = divide(unscaled, add(square_root(corrected(exp_avg_sq, square_correction)), V(eps)));
    if (weight_decay != 0) step = add(step, multiply(V(weight_decay), param));
    param = add(between(param, z, average_weight), multiply(V(y_rate), step));
    z = add(z, multiply(V(z_rate), step));
  }
};

HD inline ScheduleFreeAdamW schedule_free_adamw(const ScheduleFreeSettings& settings) {
  const double kept = multiply(settings.beta1, subtract(1.0, settings.average_weight));
  return {as_float(settings.grad_scale),
          as_float(settings.weight_decay),
          as_float(settings.beta2),
          complement(settings.beta2),
          as_float(bias(settings, settings.beta2)),
          as_float(settings.eps),
          as_float(settings.average_weight),
          as_float(multiply(settings.lr, subtract(kept, 1.0))),
          as_float(-settings.lr)};
}

struct LerpSettings : StepSettings {
  double weight = 0.0;
};

// param += weight * (end - param)
struct Lerp {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update};
  static constexpr size_t kSums = 0;

  float weight;

  template <class V>
  HD void operator()(V end, V& param) const {
    param = between(param, end, weight);
  }
};

HD inline Lerp lerp(const LerpSettings& settings) { return {as_float(settings.weight)}; }

}  // namespace apex::kernels::rules
