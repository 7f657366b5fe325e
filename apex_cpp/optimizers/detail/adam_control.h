#pragma once

#include <apex_cpp/optimizers/fused_adam.h>

#include "kernels/optimizers.h"

namespace apex::optimizers::detail {

/// The options of a group as the kernel takes them. For source files.
kernels::AdamControl adam_control(const FusedAdamOptions& options);

}  // namespace apex::optimizers::detail
