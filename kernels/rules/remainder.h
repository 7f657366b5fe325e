#pragma once

#include "kernels/rules/arithmetic.h"

// A float32 value that is stored as a bfloat16 and the difference from it, the remainder: an int16 in units of the float32's
// last place, or an int8 in units of 256 of these.
//
// With an int16 every float32 comes back with its own bits. This is possible only because a value in the middle between two
// bfloat16 rounds away from zero: to even, 65,537 float32 values round to an even bfloat16, one more than an int16 can tell
// apart. All other values round as store<BFloat16> does. With an int8 the value is first rounded to 24 bits, ties to even. A
// NaN becomes bfloat16's NaN with remainder 0. A program may write the bfloat16 alone: the value is then the new one plus the
// old remainder, except that zero, Inf and NaN stay what they are. Source: the split of Apex's DistributedFusedAdam with
// store_param_remainders, and of FlashOptim (arXiv:2602.23349).
namespace apex::kernels::rules {

template <class Remainder>
struct SplitFloat {
  BFloat16 rounded;
  Remainder remainder;
};

// The formulas, on the bits of one value or of a vector of values. kBits: those of the remainder.

// `upper` is the bfloat16. The lowest kBits of `kept` are the remainder.
template <int kBits, class Bits>
HD inline void split_bits(Bits bits, Bits& upper, Bits& kept) {
  constexpr uint32_t kDropped = 16 - kBits;
  kept = bits;
  if (kDropped > 0) kept = (bits + ((1u << kDropped) / 2 - 1) + (bits >> kDropped & 1u)) >> kDropped;
  upper = (kept + (1u << (kBits - 1))) >> kBits;
  const auto is_nan = (bits & ~detail::kSign) > detail::kFloatInf;
  const Bits none = {};
  upper = is_nan ? none + detail::kBFloat16NaN : upper;
  kept = is_nan ? none : kept;
}

// `remainder` has its sign in all bits above its own.
template <int kBits, class Bits>
HD inline Bits join_bits(Bits upper, Bits remainder) {
  const Bits bits = upper << 16, none = {}, is_negative = none - (remainder >> 31);
  // Zero with a remainder below zero, and Inf with one above, are out of the range; so are NaN.
  const Bits magnitude = (bits & ~detail::kSign) + is_negative;
  return bits + (magnitude < detail::kFloatInf ? remainder << (16 - kBits) : none);
}

template <class Remainder>
HD inline SplitFloat<Remainder> split(float value) {
  uint32_t upper, kept;
  split_bits<8 * sizeof(Remainder)>(to_bits(value), upper, kept);
  return {{static_cast<uint16_t>(upper)}, static_cast<Remainder>(kept)};
}

template <class Remainder>
HD inline float join(BFloat16 rounded, Remainder remainder) {
  const auto extended = static_cast<uint32_t>(static_cast<int32_t>(remainder));
  return from_bits(join_bits<8 * sizeof(Remainder)>(static_cast<uint32_t>(rounded.bits), extended));
}

}  // namespace apex::kernels::rules
