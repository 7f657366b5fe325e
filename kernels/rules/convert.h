#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/rules/hd.h"

// Storage types and their conversion to and from the types that formulas compute in: the reference for the conversion
// instructions of CPUs. Bit operations and ordinary float additions only: results do not depend on instruction sets or on a
// processor mode that flushes subnormal numbers. On a GPU float16, which costs a dozen instructions here, has instructions that
// do the same but for the payload of a NaN.
namespace apex::kernels::rules {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

HD inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

HD inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

namespace detail {
constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kFloatInf = 0x7f800000u;
constexpr uint32_t kQuietBit = 22;  // tells a quiet NaN from a signalling one
constexpr uint32_t kHalfInf = 0x7c00u;
constexpr uint32_t kHalfNaN = 0x7e00u;
constexpr uint32_t kBFloat16NaN = 0x7fc0u;
// Exponent biases: 127 in float32, 15 in float16.
constexpr uint32_t kRebias = (127u - 15u) << 23;
// 2^-14, the smallest normal float16, and 65520, the smallest magnitude that rounds to Inf, as float32 bits.
constexpr uint32_t kSmallestNormalHalf = 0x38800000u;
constexpr uint32_t kRoundsToHalfInf = 0x477ff000u;
}  // namespace detail

template <class Math>
HD inline Math load(float stored) {
  return static_cast<Math>(stored);
}

template <class Math>
HD inline Math load(double stored) {
  return static_cast<Math>(stored);
}

template <class Math>
HD inline Math load(BFloat16 stored) {
  return static_cast<Math>(from_bits(static_cast<uint32_t>(stored.bits) << 16));
}

template <class Math>
HD inline Math load(Half stored) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored.bits));
  return static_cast<Math>(value);
#else
  const uint32_t sign = (static_cast<uint32_t>(stored.bits) << 16) & detail::kSign;
  const uint32_t shifted = (static_cast<uint32_t>(stored.bits) & 0x7fffu) << 13;
  const uint32_t normal = shifted + detail::kRebias;
  // A subnormal is read as a fraction of 2^-14 with the leading one that it lacks, which is then taken away exactly.
  const uint32_t subnormal = to_bits(from_bits(shifted + detail::kSmallestNormalHalf) - from_bits(detail::kSmallestNormalHalf));
  const uint32_t quiet = static_cast<uint32_t>(shifted > (detail::kHalfInf << 13)) << detail::kQuietBit;
  const uint32_t not_finite = (shifted + 2 * detail::kRebias) | quiet;
  uint32_t magnitude = shifted < (1u << 23) ? subnormal : normal;
  magnitude = shifted >= (detail::kHalfInf << 13) ? not_finite : magnitude;
  return static_cast<Math>(from_bits(sign | magnitude));
#endif
}

// store<T>(value): the nearest T, ties to even. A NaN becomes quiet in float16, where it
// keeps its sign and what fits of its payload (as F16C instructions have it), and 0x7fc0 in bfloat16.
template <class Storage>
struct Store;

template <>
struct Store<float> {
  template <class Math>
  HD static float from(Math value) {
    return static_cast<float>(value);
  }
};

template <>
struct Store<double> {
  template <class Math>
  HD static double from(Math value) {
    return static_cast<double>(value);
  }
};

template <>
struct Store<BFloat16> {
  template <class Math>
  HD static BFloat16 from(Math value) {
    const uint32_t bits = to_bits(static_cast<float>(value));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & ~detail::kSign) > detail::kFloatInf;
    return {static_cast<uint16_t>(is_nan ? detail::kBFloat16NaN : rounded)};
  }
};

template <>
struct Store<Half> {
  template <class Math>
  HD static Half from(Math value) {
#ifdef __CUDA_ARCH__
    Half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(static_cast<float>(value)));
    return half;
#else
    const uint32_t bits = to_bits(static_cast<float>(value));
    const uint32_t sign = (bits & detail::kSign) >> 16;
    const uint32_t magnitude = bits & ~detail::kSign;
    const uint32_t normal = (magnitude - detail::kRebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // One unit in the last place of 0.5 is 2^-24, the step between subnormal float16 values: the addition rounds.
    const uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    uint32_t result = magnitude < detail::kSmallestNormalHalf ? subnormal : normal;
    result = magnitude >= detail::kRoundsToHalfInf ? detail::kHalfInf : result;
    const uint32_t nan = detail::kHalfNaN | ((magnitude >> 13) & 0x3ffu);
    result = magnitude > detail::kFloatInf ? nan : result;
    return {static_cast<uint16_t>(sign | result)};
#endif
  }
};

template <class Storage, class Math>
HD inline Storage store(Math value) {
  return Store<Storage>::from(value);
}

HD inline float round_to_half(float value) { return load<float>(store<Half>(value)); }

}  // namespace apex::kernels::rules
