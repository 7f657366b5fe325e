#pragma once

#include "kernels/rules/arithmetic.h"

#include <cstdint>
#include <type_traits>

// The arguments of optimizer updates that are plain values. A CUDA kernel takes the same struct as the host function. Each
// optimizer derives its settings from these, beside its formula (adam.h, ...).
namespace apex::kernels::rules {

struct StepSettings {
  // Gradients are multiplied by it as they are read: 1 / loss scale, times a clip coefficient if there is one.
  double grad_scale = 1.0;
  double lr = 0.0;
  double weight_decay = 0.0;
};

// For optimizers with running means.
struct MomentSettings : StepSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t step = 1;  // number of this step, from 1
  bool bias_correction = true;
};

// Where the driver reads settings that the caller keeps in tensors. nullptr: there is no such tensor.
struct StepAddresses {
  int32_t* found_inf;       // if it holds anything but 0, the update changes nothing
  const float* grad_scale;  // multiplied into grad_scale
  const float* lr;          // replaces lr
  int32_t* step;            // steps taken so far; this step's number is one more
};

// The settings with the values that stand at the addresses now.
template <class Settings>
HD Settings read_settings(Settings settings, const StepAddresses& addresses) {
  if (addresses.grad_scale != nullptr) settings.grad_scale = multiply(settings.grad_scale, double{*addresses.grad_scale});
  if (addresses.lr != nullptr) settings.lr = *addresses.lr;
  if constexpr (std::is_base_of_v<MomentSettings, Settings>) {
    if (addresses.step != nullptr) settings.step = int64_t{*addresses.step} + 1;
  }
  return settings;
}

// As in Apex's kernels, settings are rounded to float32 first, 1 - beta is a float32 difference, and bias corrections are
// computed in float64 from the rounded values.
HD inline float as_float(double value) { return static_cast<float>(value); }

// 1 - value, in float32.
HD inline float complement(double value) { return subtract(1.0f, as_float(value)); }

}  // namespace apex::kernels::rules
