#pragma once

#include "kernels/rules/arithmetic.h"
#include "kernels/rules/rule.h"

#include <cstdint>

namespace apex::kernels::rules {

// out = in * factor. The sum is 0 if all inputs are finite, and NaN otherwise.
template <class Math>
struct Scale {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::write};
  static constexpr size_t kSums = 1;

  Math factor;

  template <class V>
  HD void operator()(V in, V& out, V& residue) const {
    note_nonfinite(residue, in);
    out = multiply(in, V(factor));
  }
};

// Only the sum of Scale: nothing is written.
template <class Math>
struct CheckFinite {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read};
  static constexpr size_t kSums = 1;

  template <class V>
  HD void operator()(V in, V& residue) const {
    note_nonfinite(residue, in);
  }
};

// out = in
template <class Math>
struct Copy {
  using Real = Math;
  static constexpr Use kUses[] = {Use::read, Use::write};
  static constexpr size_t kSums = 0;

  template <class V>
  HD void operator()(V in, V& out) const {
    out = in;
  }
};

// A dynamic loss scale and its counters.
struct LossScale {
  float scale;
  int32_t growth;      // steps since the scale last changed
  int32_t hysteresis;  // overflows until the scale shrinks
};

// The loss scale after a step: update_scale_hysteresis in kernels/optimizers.h.
struct ScaleUpdate {
  float growth_factor = 2.0f;
  float backoff_factor = 0.5f;
  int32_t growth_interval = 2000;
  int32_t hysteresis = 1;

  HD LossScale operator()(LossScale state, bool found_inf) const {
    if (found_inf) {
      const int32_t left = state.hysteresis - 1;
      return {left > 0 ? state.scale : multiply(state.scale, backoff_factor), 0, left};
    }
    if (state.growth + 1 != growth_interval) return {state.scale, state.growth + 1, hysteresis};
    const float grown = multiply(state.scale, growth_factor);
    return {subtract(grown, grown) == 0 ? grown : state.scale, 0, hysteresis};
  }
};

// out = a * x + b * y, without a fused multiply-add: swapping (a, x) with (b, y) gives the same bits. The first sum is 0 if all
// x are finite, the second if all y are; NaN otherwise.
template <class Math>
struct Axpby {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::write};
  static constexpr size_t kSums = 2;

  Math a;
  Math b;

  template <class V>
  HD void operator()(V x, V y, V& out, V& x_residue, V& y_residue) const {
    note_nonfinite(x_residue, x);
    note_nonfinite(y_residue, y);
    out = add(multiply(V(a), x), multiply(V(b), y));
  }
};

}  // namespace apex::kernels::rules
