// Sixteen values at a time. Compiled for AVX512 F, BW, VL and DQ. The conversions to bfloat16 of AVX512-BF16 are not used:
// they turn subnormal values into zero.
#include <immintrin.h>

#include "kernels/cpu/isa/make_table.h"
#include "kernels/rules/moments.h"

namespace apex::kernels::cpu {
namespace {

struct Floats {
  __m512 v;

  Floats(__m512 vector) : v(vector) {}
  explicit Floats(float value) : v(_mm512_set1_ps(value)) {}
};

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a.v, b.v); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a.v, b.v); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a.v, b.v); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a.v, b.v); }
inline Floats square_root(Floats a) { return _mm512_sqrt_ps(a.v); }

// Whether every value is +0 or in the range in which Divisor's products give the correctly rounded quotient.
inline bool are_dividends(Floats a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const auto doubled = [](float bound) { return _mm512_set1_epi32(static_cast<int>(2 * rules::to_bits(bound))); };
  const __m512i smallest = doubled(rules::Divisor::kSmallestDividend);
  const __m512i range = _mm512_sub_epi32(doubled(rules::Divisor::kLargestDividend), smallest);
  const __m512i above = _mm512_sub_epi32(_mm512_add_epi32(bits, bits), smallest);
  return _mm512_mask_cmpgt_epu32_mask(_mm512_test_epi32_mask(bits, bits), above, range) == 0;
}

inline Floats divide(Floats a, const rules::Divisor& by) {
  if (by.reciprocal == 0 || !are_dividends(a)) return divide(a, Floats(by.value));
  const __m512 reciprocal = _mm512_set1_ps(by.reciprocal);
  const __m512 guess = _mm512_fmadd_ps(a.v, reciprocal, _mm512_mul_ps(a.v, _mm512_set1_ps(by.rest)));
  const __m512 remainder = _mm512_fnmadd_ps(guess, _mm512_set1_ps(by.value), a.v);
  return _mm512_fmadd_ps(remainder, reciprocal, guess);
}

// Sixteen sums.
struct Doubles {
  __m512d low, high;

  Doubles(__m512d first_eight, __m512d last_eight) : low(first_eight), high(last_eight) {}
  explicit Doubles(double value) : low(_mm512_set1_pd(value)), high(low) {}
};

inline Doubles add(Doubles a, Doubles b) { return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)}; }
inline Doubles widen(Floats a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))};
}

inline Floats at_most(Floats a, Floats largest) { return _mm512_min_ps(a.v, largest.v); }

inline Floats larger_magnitude(Floats a, Floats b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a_bits = _mm512_and_si512(_mm512_castps_si512(a.v), magnitude);
  const __m512i b_bits = _mm512_and_si512(_mm512_castps_si512(b.v), magnitude);
  return _mm512_castsi512_ps(_mm512_max_epi32(a_bits, b_bits));
}

inline Floats sign(Floats a) {
  const __m512i bits = _mm512_castps_si512(a.v), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i one = _mm512_or_si512(_mm512_andnot_si512(_mm512_set1_epi32(0x7fffffff), bits), _mm512_set1_epi32(0x3f800000));
  const __m512i or_zero = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(magnitude, magnitude), one);
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(or_zero, is_nan, bits));
}

// The instruction rounds to nearest even whatever the processor's mode, and keeps subnormal results.
__m256i to_half(__m512 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

inline Floats round_to_half(Floats a) { return _mm512_cvtph_ps(to_half(a.v)); }

inline Floats round_at_random(Floats a, uint32_t key) {
  const auto bits = reinterpret_cast<NumbersOf<uint32_t, 16>::type>(a.v);
  return reinterpret_cast<__m512>(rules::round_bits_at_random(bits, key));
}

__m256i to_bfloat16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_add_epi32(below_half, is_odd, below_half, _mm512_set1_epi32(1));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i words = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i upper = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13,
                                         11, 9, 7, 5, 3, 1);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, words));
}

__m256i load_bits(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

__mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

struct Avx512 {
  using OfBFloat16 = Avx512;
  using Real = float;
  using Vector = Floats;
  static constexpr int64_t kLanes = 16;

  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static Floats load(const rules::Half* from) { return _mm512_cvtph_ps(load_bits(from)); }
  static Floats load(const rules::BFloat16* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits(from)), 16));
  }

  static void store(Floats a, float* to) { _mm512_storeu_ps(to, a.v); }
  static void store(Floats a, rules::Half* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_half(a.v)); }
  static void store(Floats a, rules::BFloat16* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bfloat16(a.v)); }

  using Ints = NumbersOf<int32_t, kLanes>::type;
  static __m128i bytes(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static Ints load_bytes(const int8_t* from) { return reinterpret_cast<Ints>(_mm512_cvtepi8_epi32(bytes(from))); }
  static Ints load_bytes(const uint8_t* from) { return reinterpret_cast<Ints>(_mm512_cvtepu8_epi32(bytes(from))); }
  static void store_bytes(Ints numbers, void* to) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(numbers)));
  }

  static void stream(Floats a, rules::Half* to) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), to_half(a.v)); }
  static void stream(Floats a, rules::BFloat16* to) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), to_bfloat16(a.v)); }
  static void fence() { _mm_sfence(); }

  struct Wide {
    using Vector = Doubles;
    static Doubles load(const double* from) { return {_mm512_loadu_pd(from), _mm512_loadu_pd(from + 8)}; }
    static void store(Doubles a, double* to) {
      _mm512_storeu_pd(to, a.low);
      _mm512_storeu_pd(to + 8, a.high);
    }
    static Doubles load_first(const double* from, int64_t count) {
      const __mmask16 mask = first(count);
      return {_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), from),
              _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask >> 8), from + 8)};
    }
    static void store_first(Doubles a, double* to, int64_t count) {
      const __mmask16 mask = first(count);
      _mm512_mask_storeu_pd(to, static_cast<__mmask8>(mask), a.low);
      _mm512_mask_storeu_pd(to + 8, static_cast<__mmask8>(mask >> 8), a.high);
    }
  };

  static Floats load_first(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
  static void store_first(Floats a, float* to, int64_t count) { _mm512_mask_storeu_ps(to, first(count), a.v); }
};

}  // namespace

constexpr KernelTable kAvx512Kernels = make_table<Avx512>();

}  // namespace apex::kernels::cpu
