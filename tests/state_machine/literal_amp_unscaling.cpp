// Apex's treatment of gradients at the end of a scale_loss block: unscaled, checked, and kept for the step.
#include <cmath>
#include <utility>

#include "tests/state_machine/literal_amp.h"

namespace apex::test {
namespace {

bool is_finite(const Values& values) { return std::isfinite(values[0]) && std::isfinite(values[1]); }

}  // namespace

Values LiteralAmp::scaled(const Values& in, double factor, Type out) { return axpby(factor, in, 0, Values{}, out); }

Values LiteralAmp::axpby(double a, const Values& x, double b, const Values& y, Type out) {
  Values result;
  for (size_t i = 0; i < result.size(); ++i) {
    const double sum = double{static_cast<float>(a * x[i])} + (b == 0 ? 0.0f : static_cast<float>(b * y[i]));
    result[i] = out == Type::half       ? round_to_half(sum)
                : out == Type::bfloat16 ? round_to_bfloat16(sum)
                                        : static_cast<float>(sum);
  }
  return result;
}

void LiteralAmp::post(Optimizer& optimizer, const ScalerState& scaler) {
  if (in_fused_order(optimizer)) return post_fused_order(optimizer, scaler);
  if (has_masters(config_)) {
    post_masters(optimizer, scaler);
  } else {
    post_models_are_masters(optimizer, optimizer.halves, scaler);
  }
  post_models_are_masters(optimizer, optimizer.floats, scaler);
  remember_model_grads(optimizer);
}

void LiteralAmp::remember_model_grads(const Optimizer& optimizer) {
  for (int param : optimizer.halves) {
    marked_[param] = state_.params[param].grad.defined;
    zeroed_[param] = false;
  }
}

// BWD-10. SCALE-06: only what comes in is checked. apex_cpp: at a scale below 1 a quotient that
// does not fit is an overflow, too.
void LiteralAmp::post_masters(Optimizer& optimizer, const ScalerState& scaler) {
  const double factor = 1 / scaler.scale;
  for (int param : optimizer.halves) {
    const Gradient& grad = state_.params[param].grad;
    Gradient& master = state_.masters[param].grad;
    if (!grad.defined) continue;
    master.values =
        master.defined ? axpby(factor, grad.values, 1, master.values, Type::single) : scaled(grad.values, factor, Type::single);
    master.defined = true;
    overflow_ |= !is_finite(grad.values) || (factor > 1 && !is_finite(master.values));
  }
}

// BWD-20. BWD-21, apex_cpp: a static scale of 1 keeps the stash, too.
void LiteralAmp::post_models_are_masters(Optimizer& optimizer, const std::vector<int>& params, const ScalerState& scaler) {
  const double factor = 1 / scaler.scale;
  for (int param : params) {
    Gradient& grad = state_.params[param].grad;
    const Gradient stash = std::exchange(optimizer.stash[param], Gradient{});
    if (!grad.defined) {
      grad = stash;
      continue;
    }
    const Type type = type_of(param);
    overflow_ |= !is_finite(grad.values);
    grad.values = stash.defined ? axpby(factor, grad.values, 1, stash.values, type) : scaled(grad.values, factor, type);
    overflow_ |= factor > 1 && !is_finite(grad.values);
  }
}

// BWD-30. BWD-31, apex_cpp: a stashed gradient without a new one is brought to the common scale, too. apex_cpp: FP32 gradients
// that outlive a step keep their scale, which Apex forgets.
void LiteralAmp::post_fused_order(Optimizer& optimizer, const ScalerState& scaler) {
  const double incoming = scaler.scale;
  const double out = optimizer.scale_set_by_backward ? std::min(incoming, optimizer.most_recent_scale) : incoming;
  double fresh_norm = 0;  // squared
  bool sums_overflow = false, stash_overflow = false;
  for (const auto* params : {&optimizer.halves, &optimizer.floats}) {
    for (int param : *params) {
      const Type type = type_of(param);
      Gradient& grad = state_.params[param].grad;
      const Gradient stash = std::exchange(optimizer.stash[param], Gradient{});
      const double of_stash = out / optimizer.most_recent_scale;
      if (grad.defined) {
        for (float value : grad.values) fresh_norm += stash.defined ? 0 : std::pow(value / incoming, 2);
        overflow_ |= !is_finite(grad.values);
        grad.values = stash.defined ? axpby(out / incoming, grad.values, of_stash, stash.values, type)
                                    : scaled(grad.values, out / incoming, type);
        const bool adds_16_bits = stash.defined && type != Type::single;
        sums_overflow |= adds_16_bits && !is_finite(grad.values);
        stash_overflow |= adds_16_bits && !is_finite(stash.values);
      } else if (stash.defined) {
        grad = {true, scaled(stash.values, of_stash, type)};
      }
    }
  }
  // apex_cpp: finite 16-bit gradients may have a sum that is not.
  overflow_ |= sums_overflow && !stash_overflow;
  // apex_cpp: the check is the pass that finds the norm for clipping.
  if (incoming == out) overflow_ |= fresh_norm > double{std::numeric_limits<float>::max()};
  optimizer.most_recent_scale = out;
  optimizer.scale_set_by_backward = true;
}

void LiteralAmp::materialize(Optimizer& optimizer) {
  const bool waiting = optimizer.scale_set_by_backward && !optimizer.params_have_scaled_gradients;
  if (!optimizer.params_have_scaled_gradients) follow_model(optimizer);
  if (!in_fused_order(optimizer) || !waiting) return;
  const double factor = 1 / optimizer.most_recent_scale;
  for (int param : optimizer.halves) {
    const Gradient& grad = state_.params[param].grad;
    if (grad.defined) state_.masters[param].grad = {true, scaled(grad.values, factor, Type::single)};
  }
  for (int param : optimizer.floats) {
    Gradient& grad = state_.params[param].grad;
    if (!grad.defined) continue;
    grad.values = scaled(grad.values, factor, Type::single);
    optimizer.added[param] = false;
  }
  remember_model_grads(optimizer);
  optimizer.most_recent_scale = 1;
  optimizer.scale_set_by_backward = false;
  optimizer.materialized = true;
}

}  // namespace apex::test
