#pragma once

#include "kernels/rules/arithmetic.h"
#include "kernels/rules/random.h"

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

// 1 / scale, or 0 for groups without codes.
HD inline float inverse_scale(uint32_t exponent) { return has_codes(exponent) ? from_bits((254 - exponent) << 23) : 0.0f; }

// The scale of a group whose values are `factor` times the numbers that codes are made of. `inverse`: of the scale, for the
// numbers.
struct GroupScale {
  uint32_t exponent;
  float inverse;

  HD GroupScale(uint32_t largest, float factor)
      : exponent(scale_exponent(to_bits(multiply(from_bits(largest), factor)))),
        inverse(multiply(inverse_scale(exponent), factor)) {}
};

// The key of a tensor's random numbers in a step. Element i has the number mixed(key + i).
HD inline uint32_t rounding_key(int64_t step, int64_t position) {
  return mixed(step_key(step) + static_cast<uint32_t>(position));
}

// What the random numbers of a call depend on. If its first tensor is a part of another one, `position` is that tensor's and
// `element` the part's first element, a multiple of kGroup.
struct Rounding {
  int64_t step = 0, position = 0, element = 0;

  // Of the tensor at `index` of the call.
  HD uint32_t key(int64_t index) const { return rounding_key(step, position + index) + static_cast<uint32_t>(element); }
};

// The formulas, on one value or a vector of values, of groups that are finite. `inverse`: of the group's scale.

constexpr float kMeanCodes = 127, kSquareCodes = 255;

// Where a value is between its codes, in units of 1/65536 of a code, before it is cut to an integer. `root`: of the square.
constexpr int kUnitBits = 16, kUnits = 1 << kUnitBits;
template <class V>
HD inline V mean_position(V magnitude, V inverse) {
  return at_most(multiply(square_root(multiply(magnitude, inverse)), V(kMeanCodes * kUnits)), V(kMeanCodes * kUnits));
}
template <class V>
HD inline V square_position(V root, V inverse) {
  return at_most(multiply(multiply(root, inverse), V(kSquareCodes * kUnits)), V(kSquareCodes * kUnits));
}

// The codes, from the positions and the bits of the mean or the root. `distance`: what is added before cutting a position to a
// code: kUnitBits random bits, or half a code.
constexpr int kNearest = kUnits / 2;
template <class Int>
HD inline Int mean_code_at(Int position, Int distance, Int bits) {
  const Int sign = bits >> 31, code = (position + distance) >> kUnitBits;
  return (code ^ sign) - sign;
}
template <class Int>
HD inline Int square_code_at(Int position, Int distance, Int bits) {
  const Int none = {}, least = bits > none ? none + kUnits : none, at = position + distance;
  return (at > least ? at : least) >> kUnitBits;
}

// The random distances of a mean and of a square, from the random number of their element.
template <class Bits>
HD inline Bits distance_of_mean(Bits random) {
  return random & (kUnits - 1u);
}
template <class Bits>
HD inline Bits distance_of_square(Bits random) {
  return random >> kUnitBits;
}

template <class V>
HD inline V mean_at(V code, V scale) {
  const V part = multiply(code, V(1 / kMeanCodes));
  return multiply(scale, multiply(part, larger_magnitude(part, part)));
}
template <class V>
HD inline V square_at(V code, V scale) {
  const V root = multiply(scale, multiply(code, V(1 / kSquareCodes)));
  return multiply(root, root);
}

// The same for one element.

HD inline int8_t mean_code(float value, float inverse, int distance) {
  const float position = mean_position(from_bits(to_bits(value) & ~detail::kSign), inverse);
  return static_cast<int8_t>(mean_code_at(static_cast<int>(position), distance, static_cast<int>(to_bits(value))));
}

HD inline uint8_t square_code(float root, float inverse, int distance) {
  const float position = square_position(root, inverse);
  return static_cast<uint8_t>(square_code_at(static_cast<int>(position), distance, static_cast<int>(to_bits(root))));
}

HD inline float mean_of_code(int8_t code, float scale) { return mean_at(static_cast<float>(code), scale); }
HD inline float square_of_code(uint8_t code, float scale) { return square_at(static_cast<float>(code), scale); }

}  // namespace apex::kernels::rules
