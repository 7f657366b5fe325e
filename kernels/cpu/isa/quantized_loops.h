#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/rules/quantized.h"

// Loops over groups of quantised moments, which the compiler vectorises. Compiled for several instruction sets, hence static.
namespace apex::kernels::cpu {

static void read_moments(const MomentBlock& mean, const MomentBlock& square, int64_t groups) {
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = group * rules::kGroup;
    const uint8_t* __restrict codes = mean.codes + at;
    float* __restrict values = mean.values + at;
    const float scale = rules::scale_of(mean.exponents[group]);
    for (int64_t i = 0; i < rules::kGroup; ++i) values[i] = rules::mean_of_code(static_cast<int8_t>(codes[i]), scale);
  }
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = group * rules::kGroup;
    const uint8_t* __restrict codes = square.codes + at;
    float* __restrict values = square.values + at;
    const float scale = rules::scale_of(square.exponents[group]);
    for (int64_t i = 0; i < rules::kGroup; ++i) values[i] = rules::square_of_code(codes[i], scale);
  }
}

// The exponent of a group's scale.
static uint32_t exponent_of(const float* values) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < rules::kGroup; ++i) {
    const uint32_t magnitude = rules::to_bits(values[i]) & ~rules::detail::kSign;
    largest = magnitude > largest ? magnitude : largest;
  }
  return rules::scale_exponent(largest);
}

static void write_means(const float* __restrict values, const uint32_t* __restrict random, uint8_t* __restrict codes,
                        uint8_t* exponent) {
  const uint32_t chosen = exponent_of(values);
  *exponent = static_cast<uint8_t>(chosen);
  if (!rules::has_codes(chosen)) return void(__builtin_memset(codes, 0, rules::kGroup));
  const float inverse = rules::inverse_scale(chosen);
  for (int64_t i = 0; i < rules::kGroup; ++i) {
    codes[i] = static_cast<uint8_t>(rules::mean_code(values[i], inverse, rules::random_of_mean(random[i])));
  }
}

static void write_squares(const float* __restrict values, const uint32_t* __restrict random, uint8_t* __restrict codes,
                          uint8_t* exponent) {
  alignas(64) float roots[rules::kGroup];
  for (int64_t i = 0; i < rules::kGroup; ++i) roots[i] = rules::square_root(values[i]);
  const uint32_t chosen = exponent_of(roots);
  *exponent = static_cast<uint8_t>(chosen);
  if (!rules::has_codes(chosen)) return void(__builtin_memset(codes, 0, rules::kGroup));
  const float inverse = rules::inverse_scale(chosen);
  for (int64_t i = 0; i < rules::kGroup; ++i) {
    codes[i] = rules::square_code(roots[i], inverse, rules::random_of_square(random[i]));
  }
}

static void write_moments(const MomentBlock& mean, const MomentBlock& square, int64_t groups, uint32_t key) {
  for (int64_t group = 0; group < groups; ++group, key += rules::kGroup) {
    alignas(64) uint32_t random[rules::kGroup];
    for (uint32_t i = 0; i < rules::kGroup; ++i) random[i] = rules::mixed(key + i);
    const int64_t at = group * rules::kGroup;
    write_means(mean.values + at, random, mean.codes + at, mean.exponents + group);
    write_squares(square.values + at, random, square.codes + at, square.exponents + group);
  }
}

constexpr MomentCodes make_moment_codes() { return {read_moments, write_moments}; }

}  // namespace apex::kernels::cpu
