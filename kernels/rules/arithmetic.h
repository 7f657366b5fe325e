#pragma once

#include "kernels/rules/hd.h"

// Products and sums that are rounded one by one. The device compiler fuses them on its own unless told otherwise; on the host
// the flag -ffp-contract=off, with which all of kernels/ is compiled, keeps plain operators apart.
namespace apex::kernels::rules {

HD inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

HD inline double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

HD inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

HD inline double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

}  // namespace apex::kernels::rules
