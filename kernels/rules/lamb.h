#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

struct LambSettings : MomentSettings {
  HD LambSettings() { eps = 1e-6; }
  bool adam_w_mode = true;  // adds weight decay to the update, not to the gradient
  bool grad_averaging = true;
  bool use_nvlamb = false;  // applies the trust ratio even without weight decay
  // Gradients are divided by global_grad_norm / max_grad_norm if that exceeds 1. Not positive: no clipping.
  double max_grad_norm = 1.0;
};

// LAMB, stage 1: computes Adam's step as the update, without applying it. The sums are the squares of the parameters and of the
// updates; the trust ratio of each tensor needs them.
struct LambStage1 {
  using Real = float;
  static constexpr bool kDivides = true;
  using SumReal = double;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::update, Use::update, Use::write};
  static constexpr size_t kSums = 2;

  float grad_scale;
  Divisor clip;  // divides the gradients
  float weight_decay;
  bool decoupled;
  bool half_updates;  // updates are stored in float16: as in Apex, their norm is that of the stored values
  Moments moments;

  template <class V, class S>
  HD void operator()(V grad, V param, V& exp_avg, V& exp_avg_sq, V& update, S& param_squares, S& update_squares) const {
    V unscaled = corrected(multiply(grad, V(grad_scale)), clip);
    if (weight_decay != 0 && !decoupled) unscaled = add(unscaled, multiply(V(weight_decay), param));
    moments.add_gradient(unscaled, exp_avg, exp_avg_sq);
    update = decayed(moments.step_along(exp_avg, moments.corrected_root(exp_avg_sq)), param);
    if (half_updates) update = round_to_half(update);
    param_squares = add(param_squares, widen(multiply(param, param)));
    update_squares = add(update_squares, widen(multiply(update, update)));
  }

  template <class V>
  HD V decayed(V update, V param) const {
    return weight_decay != 0 && decoupled ? add(update, multiply(V(weight_decay), param)) : update;
  }
};

// Stage 1 without a place for the update: LambFromMoments computes it again.
struct LambSums : LambStage1 {
  static constexpr ParamStorage kParamStorage = ParamStorage::split;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::update, Use::update};

  // The update takes the place of the gradient, which is not stored: a kernel asks the values of lists whether they are exact.
  template <class V, class S>
  HD void operator()(V& grad, V param, V& exp_avg, V& exp_avg_sq, S& param_squares, S& update_squares) const {
    LambStage1::operator()(grad, param, exp_avg, exp_avg_sq, /*update=*/grad, param_squares, update_squares);
  }
};

// `global_grad_norm`: norm of all gradients after grad_scale; 0 if unknown, then there is no clipping.
// `half_updates`: whether the updates are stored in float16.
HD inline LambStage1 lamb_stage_1(const LambSettings& settings, double global_grad_norm, bool half_updates) {
  const bool clips = settings.max_grad_norm > 0 && global_grad_norm > settings.max_grad_norm;
  const float clip = clips ? divide(as_float(global_grad_norm), as_float(settings.max_grad_norm)) : 1.0f;
  return {as_float(settings.grad_scale), clip,         as_float(settings.weight_decay),
          settings.adam_w_mode,          half_updates, moments(settings, settings.grad_averaging)};
}

// LAMB's learning rate for one tensor: lr times the trust ratio.
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

HD inline LambStage2 lamb_stage_2(const LambSettings& settings, float param_norm, float update_norm) {
  const bool adapts = settings.use_nvlamb || settings.weight_decay != 0;
  const float lr = as_float(settings.lr);
  return {adapts ? trusted_rate(lr, param_norm, update_norm) : lr};
}

// Stage 2 after LambSums: the same update, from the moments that stage 1 has left. Both must be stored in float32.
struct LambFromMoments {
  using Real = float;
  static constexpr bool kDivides = true;
  static constexpr ParamStorage kParamStorage = ParamStorage::split;
  static constexpr Use kUses[] = {Use::none, Use::update, Use::read, Use::read};
  static constexpr size_t kSums = 0;

  LambStage1 first;
  LambStage2 second;

  template <class V>
  HD void operator()(V /*grad*/, V& param, V exp_avg, V exp_avg_sq) const {
    second(first.decayed(first.moments.step_along(exp_avg, first.moments.corrected_root(exp_avg_sq)), param), param);
  }
};

}  // namespace apex::kernels::rules
