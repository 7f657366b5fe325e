#pragma once

#include <cstdint>

#include "kernels/rules/arithmetic.h"

namespace apex::kernels::rules {

// A loss scale and its counters: steps since it last changed, and overflows that are still forgiven before it shrinks.
struct LossScale {
  float scale;
  int32_t growth;
  int32_t hysteresis;
};

struct ScaleUpdate {
  float growth_factor, backoff_factor;
  int32_t growth_interval, hysteresis;

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

}  // namespace apex::kernels::rules
