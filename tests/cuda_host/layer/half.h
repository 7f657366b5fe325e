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

inline uint16_t half_of_float(float value) {
  if (std::isnan(value)) return 0x7fff;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  // The distance of neighbouring float16 values at this magnitude is 2^unit.
  const int unit = magnitude < 0x1p-14 ? -24 : std::ilogb(magnitude) - 10;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);  // to nearest, ties to even
  if (rounded >= 0x1p16) return static_cast<uint16_t>(sign | 0x7c00);
  if (rounded < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 24)));
  const int exponent = std::ilogb(rounded);
  const auto mantissa = static_cast<int>(std::ldexp(rounded, 10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa);
}

// cvt.rn.bf16.f32: bfloat16 has the exponents of float32, and the first 8 bits of its significands.
inline uint16_t bfloat16_of_float(float value) {
  if (std::isnan(value)) return 0x7fff;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int unit = magnitude < 0x1p-126 ? -133 : std::isinf(value) ? 120 : std::ilogb(magnitude) - 7;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);  // to nearest, ties to even
  if (rounded >= 0x1p128) return static_cast<uint16_t>(sign | 0x7f80);
  if (rounded < 0x1p-126) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 133)));
  const int exponent = std::ilogb(rounded);
  const auto mantissa = static_cast<int>(std::ldexp(rounded, 7 - exponent)) - 128;
  return static_cast<uint16_t>(sign | (exponent + 127) << 7 | mantissa);
}

}  // namespace cuda_host
