// Eight values at a time, with the conversions of F16C. Compiled for AVX2, FMA and F16C.
#include <immintrin.h>

#include "kernels/cpu/isa/make_table.h"
#include "kernels/rules/divisor.h"

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

inline Floats larger_magnitude(Floats a, Floats b) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i a_bits = _mm256_and_si256(_mm256_castps_si256(a.v), magnitude);
  const __m256i b_bits = _mm256_and_si256(_mm256_castps_si256(b.v), magnitude);
  return _mm256_castsi256_ps(_mm256_max_epi32(a_bits, b_bits));
}

// The instruction rounds to nearest even whatever the processor's mode, and keeps subnormal results.
__m128i to_half(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

inline Floats round_to_half(Floats a) { return _mm256_cvtph_ps(to_half(a.v)); }

__m128i to_bfloat16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}

__m128i load_bits(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

__m256i first(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

__m256i first_doubles(int64_t count) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3)); }

struct Avx2 {
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
