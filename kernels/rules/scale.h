#pragma once

#include "kernels/rules/arithmetic.h"

namespace apex::kernels::rules {

// out = in * scale
template <class Math>
HD inline Math scale(Math in, Math factor) {
  return multiply(in, factor);
}

}  // namespace apex::kernels::rules
