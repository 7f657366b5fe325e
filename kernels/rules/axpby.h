#pragma once

#include "kernels/rules/arithmetic.h"

namespace apex::kernels::rules {

// out = a * x + b * y, without a fused multiply-add: swapping (a, x) with (b, y) gives the same bits.
template <class Math>
HD inline Math axpby(Math a, Math x, Math b, Math y) {
  return add(multiply(a, x), multiply(b, y));
}

}  // namespace apex::kernels::rules
