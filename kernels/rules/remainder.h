#pragma once

#include "kernels/rules/arithmetic.h"

// A float32 value that is stored as a bfloat16 and the difference from it, the remainder: an int16 in units of the float32's last
// place, or an int8 in units of 256 of these.
//
// With an int16 every float32 comes back with its own bits. This is possible only because a value in the middle between two
// bfloat16 rounds away from zero: to even, 65,537 float32 values round to an even bfloat16, one more than an int16 can tell apart.
// All other values round as store<BFloat16> does. With an int8 the value is first rounded to 24 bits, ties to even.
// A NaN becomes bfloat16's NaN with remainder 0. A program may write the bfloat16 alone: the value is then the new one plus the old
// remainder, except that zero, Inf and NaN stay what they are.
// Source: the split of Apex's DistributedFusedAdam with store_param_remainders, and of FlashOptim (arXiv:2602.23349).
namespace apex::kernels::rules {

template <class Remainder>
struct SplitFloat {
  BFloat16 rounded;
  Remainder remainder;
};

template <class Remainder>
HD inline SplitFloat<Remainder> split(float value) {
  constexpr uint32_t kBits = 8 * sizeof(Remainder), kDropped = 16 - kBits;
  const uint32_t bits = to_bits(value);
  const uint32_t to_even = kDropped == 0 ? 0 : (1u << kDropped) / 2 - 1 + (bits >> kDropped & 1u);
  const uint32_t kept = (bits + to_even) >> kDropped;
  const uint32_t upper = (kept + (1u << (kBits - 1))) >> kBits;
  const bool is_nan = (bits & ~detail::kSign) > detail::kFloatInf;
  return {{static_cast<uint16_t>(is_nan ? detail::kBFloat16NaN : upper)}, static_cast<Remainder>(is_nan ? 0u : kept)};
}

template <class Remainder>
HD inline float join(BFloat16 rounded, Remainder remainder) {
  constexpr uint32_t kDropped = 16 - 8 * sizeof(Remainder);
  const uint32_t upper = static_cast<uint32_t>(rounded.bits) << 16, magnitude = upper & ~detail::kSign;
  const uint32_t lower = static_cast<uint32_t>(static_cast<int32_t>(remainder)) << kDropped;
  const bool below_zero = magnitude == 0 && remainder < 0;
  const bool above_inf = magnitude > detail::kFloatInf || (magnitude == detail::kFloatInf && remainder > 0);
  return from_bits(upper + (below_zero || above_inf ? 0u : lower));
}

}  // namespace apex::kernels::rules
