#pragma once

#include "kernels/rules/arithmetic.h"

// Moments in 8 bits: groups of kGroup adjacent elements in memory order, each with a power of two as its scale. A tensor of
// `numel` elements is stored as the codes of whole groups, one byte an element, then one byte a group, the scale's exponent as
// float32 has it: 33 bytes for 32 elements.
//   a mean:    value = scale * z |z|, z = code / 127, for codes from -127 to 127
//   a square:  value = (scale * code / 255)^2, for codes from 0 to 255. A value above zero never becomes zero, by which Adam
//              would divide.
// A step rounds codes up or down at random, in proportion to the distance: rounded to nearest, a mean that changes by less than
// half a code in a step would never change. The random numbers depend on the step, the tensor's position and the element alone,
// so that all drivers, threads and instruction sets give the same bits. Loading rounds to nearest, which gives loaded values
// their codes back. Magnitudes above 2^126 are cut off there. A group with Inf or NaN becomes NaN. Source: the groups and the
// companding of squares are those of FlashOptim (arXiv:2602.23349), whose scales are float16 numbers; means are companded by a
// root, because it needs one operation less than FlashOptim's x / (1 + |x|).
namespace apex::kernels::rules {

constexpr int64_t kGroup = 32;

HD constexpr int64_t group_count(int64_t numel) { return (numel + kGroup - 1) / kGroup; }
HD constexpr int64_t quantized_bytes(int64_t numel) { return group_count(numel) * (kGroup + 1); }

constexpr uint32_t kNonfiniteExponent = 255, kLargestExponent = 253;

// The exponent of the smallest power of two that is no smaller than any value, from the largest bits of their magnitudes.
HD inline uint32_t scale_exponent(uint32_t largest) {
  if (largest >= detail::kFloatInf) return kNonfiniteExponent;
  const uint32_t exponent = (largest + 0x7fffffu) >> 23;
  const uint32_t bounded = exponent < kLargestExponent ? exponent : kLargestExponent;
  return largest != 0 && bounded == 0 ? 1 : bounded;
}

HD inline float scale_of(uint32_t exponent) { return from_bits(exponent << 23); }

// Whether the group of a scale has codes. A group of zeros and a group with Inf or NaN have zeros in their place.
HD inline bool has_codes(uint32_t exponent) { return exponent != 0 && exponent != kNonfiniteExponent; }

// 1 / scale, for groups that have codes.
HD inline float inverse_scale(uint32_t exponent) { return from_bits((254 - exponent) << 23); }

// A hash of 32 bits (Wellons, hash-prospector: lowbias32).
HD inline uint32_t mixed(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x7feb352du;
  bits = (bits ^ bits >> 15) * 0x846ca68bu;
  return bits ^ bits >> 16;
}

// The key of a tensor's random numbers in a step. Element i has the number mixed(key + i).
HD inline uint32_t rounding_key(int64_t step, int64_t position) {
  return mixed(mixed(static_cast<uint32_t>(step)) + static_cast<uint32_t>(position));
}

// What the random numbers of a call depend on. If its first tensor is a part of another one, `position` is that tensor's and
// `element` the part's first element, a multiple of kGroup.
struct Rounding {
  int64_t step = 0, position = 0, element = 0;

  // Of the tensor at `index` of the call.
  HD uint32_t key(int64_t index) const { return rounding_key(step, position + index) + static_cast<uint32_t>(element); }
};

// What is added before codes are cut to integers: a number from 0 to 1 - 2^-16 of half of the random bits, or 1/2.
constexpr float kNearest = 0.5f, kRandomUnit = 1.0f / 65536;
HD inline float random_of_mean(uint32_t bits) {
  return multiply(static_cast<float>(static_cast<int>(bits & 0xffffu)), kRandomUnit);
}
HD inline float random_of_square(uint32_t bits) {
  return multiply(static_cast<float>(static_cast<int>(bits >> 16)), kRandomUnit);
}

// One element of a group that is finite. `inverse`: of the group's scale.

constexpr float kMeanCodes = 127, kSquareCodes = 255;

HD inline int8_t mean_code(float value, float inverse, float random) {
  const float size = multiply(from_bits(to_bits(value) & ~detail::kSign), inverse);
  const float code = add(multiply(square_root(size), kMeanCodes), random);
  const int whole = static_cast<int>(code < kMeanCodes ? code : kMeanCodes);
  return static_cast<int8_t>(value < 0 ? -whole : whole);
}

// `root`: of the value.
HD inline uint8_t square_code(float root, float inverse, float random) {
  const float code = add(multiply(multiply(root, inverse), kSquareCodes), random);
  const int whole = static_cast<int>(code < kSquareCodes ? code : kSquareCodes);
  const auto least = static_cast<int>((to_bits(root) & ~detail::kSign) != 0);
  return static_cast<uint8_t>(whole < least ? least : whole);
}

HD inline float mean_of_code(int8_t code, float scale) {
  const float part = multiply(static_cast<float>(code), 1 / kMeanCodes);
  return multiply(scale, multiply(part, part < 0 ? -part : part));
}

HD inline float square_of_code(uint8_t code, float scale) {
  const float root = multiply(scale, multiply(static_cast<float>(code), 1 / kSquareCodes));
  return multiply(root, root);
}

}  // namespace apex::kernels::rules
