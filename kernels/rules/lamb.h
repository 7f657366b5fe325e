#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// LAMB, stage 1: Adam's step becomes the update, not yet applied. The sums are the squares of the parameters and of the
// updates, for the trust ratio of each tensor.
struct LambStage1 {
  using Real = float;
  using SumReal = double;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::update, Use::update, Use::write};
  static constexpr size_t kSums = 2;

  float grad_scale;
  Divisor clip;  // gradients are divided by it
  float weight_decay;
  bool decoupled;
  bool half_updates;  // updates are stored in float16: as in Apex, their norm is that of what is stored
  Moments moments;

  template <class V, class S>
  HD void operator()(V grad, V param, V& exp_avg, V& exp_avg_sq, V& update, S& param_squares, S& update_squares) const {
    V unscaled = corrected(multiply(grad, V(grad_scale)), clip);
    if (weight_decay != 0 && !decoupled) unscaled = add(unscaled, multiply(V(weight_decay), param));
    update = moments.advance(unscaled, exp_avg, exp_avg_sq);
    if (weight_decay != 0 && decoupled) update = add(update, multiply(V(weight_decay), param));
    if (half_updates) update = round_to_half(update);
    param_squares = add(param_squares, widen(multiply(param, param)));
    update_squares = add(update_squares, widen(multiply(update, update)));
  }
};

// LAMB's learning rate for one tensor.
HD inline float trusted_rate(float lr, float param_norm, float update_norm) {
  return param_norm != 0 && update_norm != 0 ? multiply(lr, divide(param_norm, update_norm)) : lr;
}

// LAMB, stage 2: param -= rate * update.
struct LambStage2 {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update};
  static constexpr size_t kSums = 0;

  float rate;

  template <class V>
  HD void operator()(V update, V& param) const {
    param = add(param, multiply(V(-rate), update));
  }
};

}  // namespace apex::kernels::rules
