#pragma once

#include "kernels/rules/moments.h"
#include "kernels/rules/quantized.h"

namespace apex::kernels::rules {

struct AdamSettings : MomentSettings {
  bool adam_w_mode = true;  // adds weight decay to the step (AdamW), not to the gradient
  bool rounds_params_at_random = false, rounds_moments_at_random = false;  // where they are stored in bfloat16
  // For moments in 8 bits of a part of a tensor: the tensor's position, and the part's first element (Rounding).
  int64_t first_position = 0, first_element = 0;

  HD Rounding rounding() const { return {step, first_position, first_element}; }
};

// Adam, which adds weight decay to the gradient, and AdamW (`decoupled`), which adds it to the step.
struct Adam {
  using Real = float;
  static constexpr bool kDivides = true;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update, Use::update};
  static constexpr size_t kSums = 0, kMean = 2, kSquare = 3;

  float grad_scale, lr, weight_decay;
  bool decoupled;
  uint32_t param_key, moments_key;  // of rounding to bfloat16 at random; 0: no such rounding
  Moments moments;
  float correction_root;  // sqrt(moments.square_correction)

  template <class V>
  HD void operator()(V grad, V& param, V& exp_avg, V& exp_avg_sq) const {
    update(grad, param, exp_avg, exp_avg_sq);
    if (moments_key != 0) {
      exp_avg = round_at_random(exp_avg, moments_key);
      exp_avg_sq = round_at_random(exp_avg_sq, moments_key);
    }
  }

  // For moments in 8 bits, which are rounded later, and group by group. Returns the root of the mean of squares, divided by
  // correction_root.
  template <class V>
  HD V update(V grad, V& param, V& exp_avg, V& exp_avg_sq) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (weight_decay != 0 && !decoupled) unscaled = add(unscaled, multiply(V(weight_decay), param));
    moments.add_gradient(unscaled, exp_avg, exp_avg_sq);
    const V root = moments.corrected_root(exp_avg_sq);
    V step = moments.step_along(exp_avg, root);
    if (weight_decay != 0 && decoupled) step = add(step, multiply(V(weight_decay), param));
    param = add(param, multiply(V(-lr), step));
    if (param_key != 0) param = round_at_random(param, param_key);
    return root;
  }
};

HD inline Adam adam(const AdamSettings& settings) {
  const uint32_t key = step_key(settings.step);  // not 0: steps are counted from 1
  return {as_float(settings.grad_scale),
          as_float(settings.lr),
          as_float(settings.weight_decay),
          settings.adam_w_mode,
          settings.rounds_params_at_random ? key : 0,
          settings.rounds_moments_at_random ? key : 0,
          moments(settings, /*grad_averaging=*/true),
          as_float(square_root(bias(settings, settings.beta2)))};
}

// The same for lists of which the drivers know the dtypes.
HD inline Adam for_dtypes(Adam rule, bool param_is_bfloat16, bool moments_are_bfloat16) {
  if (!param_is_bfloat16) rule.param_key = 0;
  if (!moments_are_bfloat16) rule.moments_key = 0;
  return rule;
}

}  // namespace apex::kernels::rules
