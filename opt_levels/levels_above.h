#pragma once

#include <vector>

#include "opt_levels/opt_level.h"

namespace apex::opt_levels {

/// The levels with more FP32, the next one first: O2, O1, O0 after O3; O4, O0 after O5; none after O0. A level that its
/// overrides make one of bfloat16 counts as O5's kin. Overrides that any level can have (`num_losses`, `verbosity`,
/// `allow_banned`, `allow_tf32`, `cpu_16bit`, `skip_nonfinite`, `float32_modules`, `float32_functions`) hold at these levels
/// too; those of types, cast lists and loss scales do not.
std::vector<OptLevel> levels_above(const OptLevel& level);

}  // namespace apex::opt_levels
