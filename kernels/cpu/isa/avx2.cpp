// Eight values at a time, with the conversions of F16C. Compiled for AVX2, FMA and F16C.
#include <immintrin.h>

#include "kernels/cpu/isa/make_table.h"
#include "kernels/rules/moments.h"

namespace apex::kernels::cpu {
namespace {

struct Floats {
  __m256 v;

  Floats(__m256 vector) : v(vector) {}
  explicit Floats(float value) : v(_mm256_set1_ps(value)) {}
};

inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a.v, b.v); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a.v, b.v); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a.v, b.v); }
inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a.v, b.v); }
inline Floats divide(Floats a, const rules::Divisor& by) { return divide(a, Floats(by.value)); }
inline Floats square_root(Floats a) { return _mm256_sqrt_ps(a.v); }

// Eight sums.
struct Doubles {
  __m256d low, high;

  Doubles(__m256d first_four, __m256d last_four) : low(first_four), high(last_four) {}
  explicit Doubles(double value) : low(_mm256_set1_pd(value)), high(low) {}
};

inline Doubles add(Doubles a, Doubles b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
inline Doubles widen(Floats a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.v)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1))};
}

inline Floats at_most(Floats a, Floats largest) { return _mm256_min_ps(a.v, largest.v); }

inline Floats larger_magnitude(Floats a, Floats b) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i a_bits = _mm256_and_si256(_mm256_castps_si256(a.v), magnitude);
  const __m256i b_bits = _mm256_and_si256(_mm256_castps_si256(b.v), magnitude);
  return _mm256_castsi256_ps(_mm256_max_epi32(a_bits, b_bits));
}

inline Floats sign(Floats a) {
  const __m256i bits = _mm256_castps_si256(a.v), magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i one = _mm256_or_si256(_mm256_andnot_si256(_mm256_set1_epi32(0x7fffffff), bits), _mm256_set1_epi32(0x3f800000));
  const __m256i is_zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  return _mm256_castsi256_ps(_mm256_blendv_epi8(_mm256_andnot_si256(is_zero, one), bits, is_nan));
}

// The instruction rounds to nearest even whatever the processor's mode, and keeps subnormal results.
__m128i to_half(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

inline Floats round_to_half(Floats a) { return _mm256_cvtph_ps(to_half(a.v)); }

inline Floats round_at_random(Floats a, uint32_t key) {
  const auto bits = reinterpret_cast<NumbersOf<uint32_t, 8>::type>(a.v);
  return reinterpret_cast<__m256>(rules::round_bits_at_random(bits, key));
}

// Rounds each value to bfloat16, which is then in the upper half of its word.
__m256i rounded_words(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v), unit = _mm256_set1_epi32(0x10000);
  const __m256i minus_odd = _mm256_cmpeq_epi32(_mm256_and_si256(bits, unit), unit);
  const __m256i rounded = _mm256_sub_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), minus_odd);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan);
}

__m128i to_bfloat16(__m256 v) {
  const __m256i words = _mm256_srli_epi32(rounded_words(v), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

__m128i load_bits(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

__m256i first(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

__m256i first_doubles(int64_t count) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3)); }

// Sixteen values, split into those with even and odd indices in memory.
struct EvenOdd {
  Floats even, odd;

  EvenOdd(Floats even_values, Floats odd_values) : even(even_values), odd(odd_values) {}
  explicit EvenOdd(float value) : even(value), odd(value) {}
};

inline EvenOdd add(EvenOdd a, EvenOdd b) { return {add(a.even, b.even), add(a.odd, b.odd)}; }
inline EvenOdd subtract(EvenOdd a, EvenOdd b) { return {subtract(a.even, b.even), subtract(a.odd, b.odd)}; }
inline EvenOdd multiply(EvenOdd a, EvenOdd b) { return {multiply(a.even, b.even), multiply(a.odd, b.odd)}; }
inline EvenOdd divide(EvenOdd a, EvenOdd b) { return {divide(a.even, b.even), divide(a.odd, b.odd)}; }
inline EvenOdd divide(EvenOdd a, const rules::Divisor& by) { return {divide(a.even, by), divide(a.odd, by)}; }
inline EvenOdd square_root(EvenOdd a) { return {square_root(a.even), square_root(a.odd)}; }
inline EvenOdd sign(EvenOdd a) { return {sign(a.even), sign(a.odd)}; }
inline EvenOdd round_to_half(EvenOdd a) { return {round_to_half(a.even), round_to_half(a.odd)}; }
inline EvenOdd round_at_random(EvenOdd a, uint32_t key) { return {round_at_random(a.even, key), round_at_random(a.odd, key)}; }

// Splitting 32-bit words of two bfloat16 into even and odd values takes one shift or mask each. Keeping the values in order
// would take two instructions to widen and four to pack.
struct Avx2EvenOdd {
  using Real = float;
  using Vector = EvenOdd;
  static constexpr int64_t kLanes = 16;

  static EvenOdd load(const rules::BFloat16* from) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i upper = _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(upper)};
  }
  static void store(EvenOdd a, rules::BFloat16* to) {
    const __m256i even = _mm256_srli_epi32(rounded_words(a.even.v), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(even, rounded_words(a.odd.v), 0xaa));
  }
};

struct Avx2 {
  using OfBFloat16 = Avx2EvenOdd;
  using Real = float;
  using Vector = Floats;
  static constexpr int64_t kLanes = 8;

  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static Floats load(const rules::Half* from) { return _mm256_cvtph_ps(load_bits(from)); }
  static Floats load(const rules::BFloat16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bits(from)), 16));
  }

  static void store(Floats a, float* to) { _mm256_storeu_ps(to, a.v); }
  static void store(Floats a, rules::Half* to) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), to_half(a.v)); }
  static void store(Floats a, rules::BFloat16* to) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), to_bfloat16(a.v)); }

  using Ints = NumbersOf<int32_t, kLanes>::type;
  static __m128i bytes(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
  static Ints load_bytes(const int8_t* from) { return reinterpret_cast<Ints>(_mm256_cvtepi8_epi32(bytes(from))); }
  static Ints load_bytes(const uint8_t* from) { return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(bytes(from))); }
  static void store_bytes(Ints numbers, void* to) {
    const __m256i lowest = _mm256_set1_epi32(0x0c080400);  // of each half, to its first four bytes
    const __m256i packed = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(numbers), lowest);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storel_epi64(static_cast<__m128i*>(to), both);
  }

  static void stream(Floats a, rules::Half* to) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), to_half(a.v)); }
  static void stream(Floats a, rules::BFloat16* to) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), to_bfloat16(a.v)); }
  static void fence() { _mm_sfence(); }

  struct Wide {
    using Vector = Doubles;
    static Doubles load(const double* from) { return {_mm256_loadu_pd(from), _mm256_loadu_pd(from + 4)}; }
    static void store(Doubles a, double* to) {
      _mm256_storeu_pd(to, a.low);
      _mm256_storeu_pd(to + 4, a.high);
    }
    static Doubles load_first(const double* from, int64_t count) {
      return {_mm256_maskload_pd(from, first_doubles(count)), _mm256_maskload_pd(from + 4, first_doubles(count - 4))};
    }
    static void store_first(Doubles a, double* to, int64_t count) {
      _mm256_maskstore_pd(to, first_doubles(count), a.low);
      _mm256_maskstore_pd(to + 4, first_doubles(count - 4), a.high);
    }
  };

  static Floats load_first(const float* from, int64_t count) { return _mm256_maskload_ps(from, first(count)); }
  static void store_first(Floats a, float* to, int64_t count) { _mm256_maskstore_ps(to, first(count), a.v); }
};

}  // namespace

constexpr KernelTable kAvx2Kernels = make_table<Avx2>();

}  // namespace apex::kernels::cpu
