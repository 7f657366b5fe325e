#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

// A register of values at a time, in the compiler's own vectors: of wider ones GCC makes moves through memory and comparisons
// one by one. Each place has a sum of its own, so that their number changes no bit. Local to each source file, so that code for
// one instruction set never stands in for another's.
namespace apex::kernels::layers {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t SignedWords __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Elements __attribute__((vector_size(2 * kLanes)));

[[gnu::always_inline]] inline Floats load_values(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

[[gnu::always_inline]] inline void store_values(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

[[gnu::always_inline]] inline Floats load_bfloat16(const uint16_t* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto words = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Elements elements;
  std::memcpy(&elements, from, sizeof elements);
  const Words words = __builtin_convertvector(elements, Words);
#endif
  return reinterpret_cast<Floats>(words << 16);
}

#ifdef __AVX512BF16__
// By the instruction, where that rounds like the rest: it has other bits for NaN, and takes subnormal values for zero.
[[gnu::always_inline]] inline bool store_by_instruction(Floats values, uint16_t* to) {
  constexpr int kSignalingNan = 0x80, kSubnormal = 0x20, kQuietNan = 0x01;
  const auto floats = (__m512)values;
  if (_mm512_fpclass_ps_mask(floats, kSignalingNan | kSubnormal | kQuietNan) != 0) return false;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(floats));
  return true;
}
#endif

// As rules::Store<BFloat16> has it: to nearest even, a NaN is 0x7fc0.
[[gnu::always_inline]] inline void store_bfloat16(Floats values, uint16_t* to) {
#ifdef __AVX512BF16__
  if (__builtin_expect(store_by_instruction(values, to), true)) return;
#endif
  const Words bits = reinterpret_cast<Words>(values);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Compared as what has a sign: AVX2 has no other comparison.
  const auto is_nan = reinterpret_cast<Words>(reinterpret_cast<SignedWords>(bits & 0x7fffffffu) > 0x7f800000);
  const Elements elements = __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), Elements);
  std::memcpy(to, &elements, sizeof elements);
}

}  // namespace
}  // namespace apex::kernels::layers
