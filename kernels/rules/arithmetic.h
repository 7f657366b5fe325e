#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// HD marks a function for host and device. DEVICE_BODY marks a part of a kernel: a CUDA compiler makes it device code, other
// compilers make it ordinary code, which tests run. UNROLL asks the device compiler to unroll a loop, so that arrays indexed by
// the loop variable can stay in registers. ROLLED forbids unrolling, to keep the code small.
#ifdef __CUDACC__
#define HD __host__ __device__
#define DEVICE_BODY __device__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#else
#define HD
#define DEVICE_BODY
#define UNROLL
#define ROLLED
#endif

#ifdef __CUDA_ARCH__
#include "kernels/cuda/device.cuh"
#endif

// Storage types and their conversion to and from the types that formulas compute in. This is the reference for the conversion
// instructions of CPUs. It uses bit operations and plain float additions only, so that results depend neither on the
// instruction set nor on a processor mode that flushes subnormal numbers. GPU code converts to and from 16 bits by single
// instructions; for float16 they differ in the payload of a NaN.
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
constexpr uint32_t kOne = 0x3f800000u;  // 1
constexpr uint32_t kQuietBit = 22;      // position of the bit that makes a NaN quiet
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
  return static_cast<Math>(cuda::float_of_half(stored.bits));
#else
  const uint32_t sign = (static_cast<uint32_t>(stored.bits) << 16) & detail::kSign;
  const uint32_t shifted = (static_cast<uint32_t>(stored.bits) & 0x7fffu) << 13;
  const uint32_t normal = shifted + detail::kRebias;
  // A subnormal is read as if it had a leading one, as a multiple of 2^-14; the subtraction removes that one exactly.
  const uint32_t subnormal = to_bits(from_bits(shifted + detail::kSmallestNormalHalf) - from_bits(detail::kSmallestNormalHalf));
  const uint32_t quiet = static_cast<uint32_t>(shifted > (detail::kHalfInf << 13)) << detail::kQuietBit;
  const uint32_t not_finite = (shifted + 2 * detail::kRebias) | quiet;
  uint32_t magnitude = shifted < (1u << 23) ? subnormal : normal;
  magnitude = shifted >= (detail::kHalfInf << 13) ? not_finite : magnitude;
  return static_cast<Math>(from_bits(sign | magnitude));
#endif
}

// store<T>(value): the nearest T, ties to even. A NaN becomes a quiet NaN in float16, with its sign and the upper bits of its
// payload, as F16C instructions do it; in bfloat16 it becomes 0x7fc0.
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const float single = static_cast<float>(value);
    return {single == single ? cuda::bfloat16_of_float(single) : static_cast<uint16_t>(detail::kBFloat16NaN)};
#else
    const uint32_t bits = to_bits(static_cast<float>(value));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & ~detail::kSign) > detail::kFloatInf;
    return {static_cast<uint16_t>(is_nan ? detail::kBFloat16NaN : rounded)};
#endif
  }
};

template <>
struct Store<Half> {
  template <class Math>
  HD static Half from(Math value) {
#ifdef __CUDA_ARCH__
    return {cuda::half_of_float(static_cast<float>(value))};
#else
    const uint32_t bits = to_bits(static_cast<float>(value));
    const uint32_t sign = (bits & detail::kSign) >> 16;
    const uint32_t magnitude = bits & ~detail::kSign;
    const uint32_t normal = (magnitude - detail::kRebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 rounds: one unit in its last place is 2^-24, the distance of subnormal float16 values.
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

// The operations that rules are written in, each rounded once. By default compilers fuse products and sums. The intrinsics
// prevent it on the device; on the host the flag -ffp-contract=off does, with which all of kernels/ is compiled. Rules are
// templates over their value type: the vector types of the CPU driver define the same operations.

HD inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

HD inline double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

HD inline float subtract(float a, float b) { return add(a, -b); }
HD inline double subtract(double a, double b) { return add(a, -b); }

HD inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

HD inline double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

HD inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

HD inline double divide(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

HD inline float square_root(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

HD inline double square_root(double a) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

// The value in the type that squares are summed in.
HD inline double widen(float a) { return a; }
HD inline double widen(double a) { return a; }

// base^exponent for an exponent of at least 0. Fixes the order of the products, so that all platforms give the same bits.
HD inline double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = multiply(result, base);
    base = multiply(base, base);
  }
  return result;
}

// a, or `largest` where a is NaN or not below it.
HD inline float at_most(float a, float largest) { return a < largest ? a : largest; }

// The larger of |a| and |b|, or NaN if one of them is NaN. Without the sign, the bits of floating-point values are ordered like
// the values, with Inf and then NaN at the end.
HD inline float larger_magnitude(float a, float b) {
  const uint32_t a_bits = to_bits(a) & ~detail::kSign;
  const uint32_t b_bits = to_bits(b) & ~detail::kSign;
  return from_bits(a_bits < b_bits ? b_bits : a_bits);
}

HD inline double larger_magnitude(double a, double b) {
  const double a_size = a < 0 ? -a : a;
  const double b_size = b < 0 ? -b : b;
  return a_size >= b_size || a_size != a_size ? a_size : b_size;
}

// 1 with the sign of a value, 0 for a zero of either sign, and the value itself if it is NaN. Compares bits, so that a
// subnormal value has its sign in any mode of the processor.
HD inline float sign(float a) {
  const uint32_t bits = to_bits(a), magnitude = bits & ~detail::kSign;
  if (magnitude > detail::kFloatInf) return a;
  return magnitude == 0 ? 0.0f : from_bits((bits & detail::kSign) | detail::kOne);
}

}  // namespace apex::kernels::rules
