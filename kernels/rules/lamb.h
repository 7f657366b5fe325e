#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// LAMB, stage 1: Adam's step becomes the update, not yet applied. The sums are the squares of the parameters and of the
// updates, for the trust ratio of each tensor.
struct LambStage1 {
  using Real = float;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::update, Use::update, Use::write};
  static constexpr size_t kSums = 2;

  float grad_scale;  // with the division by the clip coefficient in it
  float weight_decay;
  bool decoupled;
  Moments moments;

  template <class V>
  HD void operator()(V grad, V param, V& exp_avg, V& exp_avg_sq, V& update, V& param_squares, V& update_squares) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decoupled) unscaled = fma(V(weight_decay), param, unscaled);
    update = moments.advance(unscaled, exp_avg, exp_avg_sq);
    if (weight_decay != 0 && decoupled) update = fma(V(weight_decay), param, update);
    param_squares = add(param_squares, multiply(param, param));
    update_squares = add(update_squares, multiply(update, update));
  }
};

// LAMB's learning rate for one tensor.
HD inline double trusted_rate(double lr, double param_norm, double update_norm) {
  return param_norm != 0 && update_norm != 0 ? lr * param_norm / update_norm : lr;
}

// LAMB, stage 2: param -= rate * update.
struct LambStage2 {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update};
  static constexpr size_t kSums = 0;

  float rate;

  template <class V>
  HD void operator()(V update, V& param) const {
    param = fma(V(-rate), update, param);
  }
};

}  // namespace apex::kernels::rules
