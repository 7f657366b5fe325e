#pragma once

#include <cmath>
#include <cstdint>

// The arithmetic of cvt.f32.f16, cvt.rn.f16.f32 and cvt.rn.bf16.f32, from the definition of the formats. A NaN becomes the NaN
// that a GPU makes.
namespace cuda_host {

inline float float_of_half(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  double magnitude = std::ldexp(exponent == 0 ? mantissa : 1024 + mantissa, (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  return static_cast<float>((half & 0x8000) != 0 ? -magnitude : magnitude);
}

// The nearest value, ties to even, of a format with so many bits for exponents and significands.
inline uint16_t rounded_to(float value, int exponent_bits, int mantissa_bits) {
  if (std::isnan(value)) return 0x7fff;
  const int sign = std::signbit(value) ? 0x8000 : 0, bias = (1 << (exponent_bits - 1)) - 1, least = 1 - bias;
  const double magnitude = std::fabs(static_cast<double>(value));
  // The distance of neighbouring values at this magnitude is 2^unit.
  const int unit = (magnitude < std::ldexp(1.0, least) ? least : std::ilogb(magnitude)) - mantissa_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (rounded >= std::ldexp(1.0, bias + 1)) return static_cast<uint16_t>(sign | ((1 << exponent_bits) - 1) << mantissa_bits);
  if (rounded < std::ldexp(1.0, least))
    return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(rounded, mantissa_bits - least)));
  const int exponent = std::ilogb(rounded);
  const auto mantissa = static_cast<int>(std::ldexp(rounded, mantissa_bits - exponent)) - (1 << mantissa_bits);
  return static_cast<uint16_t>(sign | (exponent + bias) << mantissa_bits | mantissa);
}

inline uint16_t half_of_float(float value) { return rounded_to(value, 5, 10); }
inline uint16_t bfloat16_of_float(float value) { return rounded_to(value, 8, 7); }

}  // namespace cuda_host
