#pragma once

#include <c10/core/ScalarType.h>

#include "kernels/statistics/order.h"

namespace apex::kernels::statistics::cpu {

// Does the job on tensors of that dtype, by Thrust's OpenMP back end.
void run(at::ScalarType dtype, const Job& job);

// The same as a GPU would, one lane after the other: for tests.
void run_by_lanes(at::ScalarType dtype, const Job& job);

}  // namespace apex::kernels::statistics::cpu
