#pragma once

#include "kernels/rules/arithmetic.h"

// Rounding at random, up or down in proportion to the distance, which changes nothing on average: values that change by less
// than half a unit in a step would never change if rounded to nearest. The random numbers are hashes, so that all drivers,
// threads and instruction sets give the same bits. Formulas take one number or a vector of numbers.
namespace apex::kernels::rules {

// A hash of 32 bits (Wellons, hash-prospector: lowbias32).
template <class Bits>
HD inline Bits mixed(Bits bits) {
  bits = (bits ^ bits >> 16) * 0x7feb352du;
  bits = (bits ^ bits >> 15) * 0x846ca68bu;
  return bits ^ bits >> 16;
}

HD inline uint32_t step_key(int64_t step) { return mixed(static_cast<uint32_t>(step)); }

// Rounds float32 values to bfloat16, by their bits. The random numbers depend on the key and the value: equal values round
// alike, wherever they are. Inf stays, and NaN becomes bfloat16's.
template <class Bits>
HD inline Bits round_bits_at_random(Bits bits, uint32_t key) {
  const Bits none = {}, rounded = (bits + (mixed(bits + key) & 0xffffu)) & 0xffff0000u;
  return (bits & ~detail::kSign) > detail::kFloatInf ? none + (detail::kBFloat16NaN << 16) : rounded;
}

HD inline float round_at_random(float value, uint32_t key) { return from_bits(round_bits_at_random(to_bits(value), key)); }

}  // namespace apex::kernels::rules
