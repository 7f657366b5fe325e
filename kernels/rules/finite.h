#pragma once

#include "kernels/rules/hd.h"

namespace apex::kernels::rules {

// Free of branches, so that loops over it become vector code. Inf - Inf and NaN - NaN are NaN, which equals nothing.
template <class Math>
HD inline bool is_finite(Math value) {
  return value - value == Math(0);
}

}  // namespace apex::kernels::rules
