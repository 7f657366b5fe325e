#pragma once

#include "kernels/rules/larc.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

struct LarsSettings : StepSettings {
  double momentum = 0.0;
  bool nesterov = false;
  double trust_coefficient = 0.001;
  double eps = 0.0;
  bool adapts = true;  // the rate depends on the tensor's norms; otherwise it is lr
};

// LARS (You, Gitman and Ginsburg, arXiv:1708.03888): change = -rate * (grad * grad_scale + weight_decay * param), then
// buffer = momentum * buffer + change, then param += buffer or, with `nesterov`, param += momentum * buffer + change. Without
// momentum the buffer becomes the change, whatever it held.
struct Lars {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, rate, weight_decay, momentum;
  bool nesterov;

  template <class V>
  HD void operator()(V grad, V& param, V& buffer) const {
    V step = multiply(grad, V(grad_scale));
    if (weight_decay != 0) step = add(step, multiply(V(weight_decay), param));
    const V change = multiply(V(-rate), step);
    buffer = momentum != 0 ? add(multiply(V(momentum), buffer), change) : change;
    param = add(param, nesterov ? add(multiply(V(momentum), buffer), change) : buffer);
  }
};

// The sums of squares of LARS's norms.
struct LarsSums {
  using Real = float;
  using SumReal = double;
  using Fold = Sum;
  static constexpr ParamStorage kParamStorage = ParamStorage::either;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::none};
  static constexpr size_t kSums = 2;

  float grad_scale;

  template <class V, class S>
  HD void operator()(V grad, V param, V /*buffer*/, S& grad_squares, S& param_squares) const {
    SumOfSquares<float>{grad_scale}(grad, grad_squares);
    SumOfSquares<float>{1.0f}(param, param_squares);
  }
};

// The rate of one tensor. `grad_norm`: after grad_scale. A norm of 0 leaves lr as it is.
HD inline double lars_rate(const LarsSettings& settings, double param_norm, double grad_norm) {
  if (!settings.adapts || param_norm == 0 || grad_norm == 0) return settings.lr;
  const double ratio = larc_rate(settings.trust_coefficient, param_norm, grad_norm, settings.weight_decay, settings.eps,
                                 settings.lr, /*clip=*/false);
  return multiply(settings.lr, ratio);
}

HD inline Lars lars(const LarsSettings& settings, double param_norm, double grad_norm) {
  return {as_float(settings.grad_scale), as_float(lars_rate(settings, param_norm, grad_norm)), as_float(settings.weight_decay),
          as_float(settings.momentum), settings.nesterov};
}

}  // namespace apex::kernels::rules
