#pragma once

#include "kernels/float8/cpu/float8_kernels.h"

#include <cstdint>
#include <cstring>

// Loops that the compiler vectorizes, without branches. Everything is local to each source file, so that the linker cannot
// merge code of different instruction sets.
namespace apex::kernels::float8 {
namespace {

[[gnu::always_inline]] inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[gnu::always_inline]] inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// All ones if the condition holds.
[[gnu::always_inline]] inline uint32_t all_if(bool condition) { return -static_cast<uint32_t>(condition); }

// The magnitude of a scaled value, rounded to the format. Added to it, a power of two whose last bit is the format's last bit
// rounds it; below the least normal number that bit is the subnormal step. Magnitudes compare as integers.
template <const Format& kFormat>
[[gnu::always_inline]] inline float rounded(uint32_t magnitude) {
  const uint32_t within = magnitude < kFormat.largest ? magnitude : kFormat.largest;
  const uint32_t exponent = within & 0x7f800000u;
  const uint32_t above = exponent < kFormat.least_normal ? kFormat.least_normal : exponent;
  const float rounder = float_of(above + (static_cast<uint32_t>(kFormat.dropped_bits) << 23));
  return (float_of(within) + rounder) - rounder;
}

// Results are bfloat16, to nearest even; a NaN has no sign and no payload.
template <const Format& kFormat>
[[gnu::always_inline]] inline uint16_t round_one(uint16_t x, const Scale& scale) {
  const uint32_t scaled = bits_of(float_of(static_cast<uint32_t>(x) << 16) * scale.scale);
  const uint32_t magnitude = scaled & 0x7fffffffu;
  const uint32_t bits = bits_of(rounded<kFormat>(magnitude) * scale.inverse) | (scaled & 0x80000000u);
  const uint32_t is_nan = all_if(magnitude > 0x7f800000u);
  return static_cast<uint16_t>((is_nan & 0x7fc0u) | (~is_nan & ((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)));
}

template <const Format& kFormat>
void round_run(const uint16_t* x, Run run, const Scale* scales, uint16_t* y) {
  if (run.columns == 1) {
#pragma omp simd
    for (int64_t i = 0; i < run.size; ++i) y[i] = round_one<kFormat>(x[i], scales[i]);
    return;
  }
  for (int64_t begin = 0; begin < run.size; begin += run.columns) {
    const int64_t end = run.size - begin < run.columns ? run.size : begin + run.columns;
    const Scale scale = *scales++;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = round_one<kFormat>(x[i], scale);
  }
}

[[gnu::always_inline]] inline uint16_t larger(uint16_t a, uint16_t b) { return a < b ? b : a; }

void add_largest(const uint16_t* x, Run run, uint16_t* largest) {
  if (run.columns == 1) {
#pragma omp simd
    for (int64_t i = 0; i < run.size; ++i) largest[i] = larger(largest[i], static_cast<uint16_t>(x[i] & 0x7fffu));
    return;
  }
  for (int64_t begin = 0; begin < run.size; begin += run.columns) {
    const int64_t end = run.size - begin < run.columns ? run.size : begin + run.columns;
    uint16_t of_block = *largest;
#pragma omp simd reduction(max : of_block)
    for (int64_t i = begin; i < end; ++i) of_block = larger(of_block, static_cast<uint16_t>(x[i] & 0x7fffu));
    *largest++ = of_block;
  }
}

constexpr Float8Kernels make_float8() { return {add_largest, round_run<kE4m3>, round_run<kE5m2>}; }

}  // namespace
}  // namespace apex::kernels::float8
