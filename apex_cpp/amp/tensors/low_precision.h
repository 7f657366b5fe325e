#pragma once

#include <c10/core/ScalarType.h>

namespace apex::amp::detail {

/// The 16-bit types that a model may be trained in. Parameters of these get FP32 masters, and checkpoints widen them.
constexpr bool is_low_precision(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }
/// The types that amp, the fused optimizers and DistributedFusedAdam train in: those and float32.
constexpr bool is_amp_float(c10::ScalarType dtype) { return is_low_precision(dtype) || dtype == c10::kFloat; }
/// The floating types of dense real numbers that tensors are trained in: those and float32 and float64.
constexpr bool is_real_float(c10::ScalarType dtype) { return is_amp_float(dtype) || dtype == c10::kDouble; }

}  // namespace apex::amp::detail
