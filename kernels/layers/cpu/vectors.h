#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

// Sixteen values at a time, in the compiler's own vectors, which become what registers there are. Local to each source file, so
// that code for one instruction set never stands in for another's.
namespace apex::kernels::layers {
namespace {

constexpr int64_t kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Elements __attribute__((vector_size(32)));

[[gnu::always_inline]] inline Floats load_values(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

[[gnu::always_inline]] inline void store_values(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

[[gnu::always_inline]] inline Floats load_bfloat16(const uint16_t* from) {
  Elements elements;
  std::memcpy(&elements, from, sizeof elements);
  return reinterpret_cast<Floats>(__builtin_convertvector(elements, Words) << 16);
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
  const Words is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const Elements elements = __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), Elements);
  std::memcpy(to, &elements, sizeof elements);
}

}  // namespace
}  // namespace apex::kernels::layers
