#pragma once

#include "kernels/cuda/packs.h"
#include "kernels/rules/coefficients.h"
#include "kernels/rules/scale.h"

#include <type_traits>

namespace apex::kernels::cuda {

// Where a kernel finds the values of an update that are in memory of the device. nullptr: nowhere.
struct Control {
  int32_t* found_inf;
  const float* grad_scale;
  const float* lr;
  int32_t* step;
};

DEVICE_BODY inline bool is_raised(const int32_t* flag) { return flag != nullptr && *flag != 0; }

DEVICE_BODY inline void raise(int32_t* flag) {
  if (flag != nullptr) *flag = 1;
}

DEVICE_BODY inline bool is_finite(float value) { return rules::subtract(value, value) == 0; }

// The settings of an update, and what a block does with the control before and after its work.
template <class Settings>
struct Controlled {
  static constexpr bool kTakesDoubles = false;

  Settings settings;
  Control control;

  DEVICE_BODY bool stopped() const { return is_raised(control.found_inf); }

  DEVICE_BODY Settings now() const {
    Settings result = settings;
    if (control.grad_scale != nullptr) result.grad_scale = rules::multiply(result.grad_scale, double{*control.grad_scale});
    if (control.lr != nullptr) result.lr = *control.lr;
    if constexpr (std::is_base_of_v<rules::MomentSettings, Settings>) {
      if (control.step != nullptr) result.step = int64_t{*control.step} + 1;
    }
    return result;
  }

  DEVICE_BODY bool finishes() const { return control.step != nullptr; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table&) const {
    block.each_thread([&](int thread) {
      if (thread == 0) ++*control.step;
    });
  }
};

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
