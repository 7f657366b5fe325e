#pragma once

#include <cmath>

#include "kernels/rules/convert.h"
#include "kernels/rules/hd.h"

// The operations that rules are written in, each rounded once. The device compiler fuses products and sums on its own unless
// told otherwise; on the host the flag -ffp-contract=off, with which all of kernels/ is compiled, keeps plain operators apart.
// Rules are templates over their value type: vector types of the CPU driver bring the same operations with them.
namespace apex::kernels::rules {

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

HD inline float subtract(float a, float b) { return add(a, -b); }
HD inline double subtract(double a, double b) { return add(a, -b); }

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

HD inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

HD inline double divide(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

HD inline float square_root(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

HD inline double square_root(double a) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

// The same value, in the type that squares are summed in.
HD inline double widen(float a) { return a; }
HD inline double widen(double a) { return a; }

// base^exponent for an exponent that is not negative, as products in an order of its own: the same bits wherever it runs.
HD inline double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = multiply(result, base);
    base = multiply(base, base);
  }
  return result;
}

// The larger of |a| and |b|, and NaN if one of them is: without their signs, the bits of floating-point values are ordered as
// Inf and NaN ask for.
HD inline float larger_magnitude(float a, float b) {
  const uint32_t a_bits = to_bits(a) & ~detail::kSign;
  const uint32_t b_bits = to_bits(b) & ~detail::kSign;
  return from_bits(a_bits < b_bits ? b_bits : a_bits);
}

HD inline double larger_magnitude(double a, double b) {
  const double a_size = a < 0 ? -a : a;
  const double b_size = b < 0 ? -b : b;
  return a_size >= b_size || a_size != a_size ? a_size : b_size;
}

}  // namespace apex::kernels::rules
