#pragma once

#include "kernels/rules/update_scale.h"

namespace apex::kernels::cuda {

// Where a loss scale is in memory, and the flag that it is updated by.
struct LossScaleAddresses {
  float* scale;
  int32_t* growth;
  int32_t* hysteresis;
  const int32_t* found_inf;

  DEVICE_BODY void apply(const rules::ScaleUpdate& rule) const {
    const rules::LossScale after = rule({*scale, *growth, *hysteresis}, *found_inf != 0);
    *scale = after.scale;
    *growth = after.growth;
    *hysteresis = after.hysteresis;
  }
};

}  // namespace apex::kernels::cuda
