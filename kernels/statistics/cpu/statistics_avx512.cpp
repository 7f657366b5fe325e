#include <immintrin.h>

#include "kernels/statistics/cpu/float_blocks.h"

namespace apex::kernels::statistics::cpu {
namespace {

struct Avx512Bytes {
  using Bytes = __m512i;
  static constexpr int kBytes = 64;

  static Bytes load(const uint8_t* from) { return _mm512_load_si512(from); }
  static Bytes splat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static Bytes min(Bytes a, Bytes b) { return _mm512_min_epu8(a, b); }
  static Bytes max(Bytes a, Bytes b) { return _mm512_max_epu8(a, b); }
  static Bytes minus(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }

  struct Counter {
    uint64_t count = 0;
    void add(Bytes keys, Bytes key) { count += static_cast<uint64_t>(__builtin_popcountll(_mm512_cmpeq_epi8_mask(keys, key))); }
    uint32_t total() const { return static_cast<uint32_t>(count); }
  };

  // The upper 16 bits of a value hold its key and the top of its fraction; a power of two is found from all 23 bits of the
  // fraction.
  static uint32_t find_half(const float* values, Bytes& keys) {
    const Bytes a = _mm512_loadu_si512(values), b = _mm512_loadu_si512(values + 16);
    const Bytes fraction = _mm512_set1_epi32(0x7fffff), top_of_fraction = _mm512_set1_epi16(0x7f);
    const __mmask32 is_power = _mm512_kunpackw(_mm512_testn_epi32_mask(b, fraction), _mm512_testn_epi32_mask(a, fraction));
    const Bytes upper = _mm512_permutex2var_epi16(a, odd_words(), b);
    keys = _mm512_srli_epi16(_mm512_and_si512(upper, _mm512_set1_epi16(0x7fff)), 7);
    const Bytes top = _mm512_and_si512(upper, top_of_fraction);
    const __mmask32 is_near_next = _mm512_cmpeq_epi16_mask(top, top_of_fraction);
    const __mmask32 has_no_exponent =
        _mm512_cmpge_epu16_mask(_mm512_sub_epi16(keys, _mm512_set1_epi16(1)), _mm512_set1_epi16(254));
    // A zero has no fraction and no exponent, so both flags cancel: zeros are not rare.
    return is_near_next | (is_power ^ has_no_exponent);
  }

  static uint64_t find_keys(const float* values, uint8_t* keys) {
    Bytes low, high;
    const uint64_t rare_low = find_half(values, low), rare_high = find_half(values + 32, high);
    _mm512_store_si512(keys, _mm512_packus_epi16(low, high));
    return rare_low | rare_high << 32;
  }

  struct LaneSums {
    static constexpr int kWide = 8;
    __m512d sums, squares;
    __m256i largest;

    void load(const TileState<float>& state, int lane) {
      sums = _mm512_load_pd(state.sums + lane), squares = _mm512_load_pd(state.squares + lane);
      largest = _mm256_load_si256(reinterpret_cast<const __m256i*>(state.largest + lane));
    }
    void add(const float* values) {
      const __m256 some = _mm256_loadu_ps(values);
      const __m512d wide = _mm512_cvtps_pd(some);
      sums = _mm512_add_pd(sums, wide);
      squares = _mm512_add_pd(squares, _mm512_mul_pd(wide, wide));
      largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(some), _mm256_set1_epi32(0x7fffffff)));
    }
    void store(TileState<float>& state, int lane) const {
      _mm512_store_pd(state.sums + lane, sums), _mm512_store_pd(state.squares + lane, squares);
      _mm256_store_si256(reinterpret_cast<__m256i*>(state.largest + lane), largest);
    }
  };

 private:
  static Bytes odd_words() {
    const Bytes pairs = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);  // joins words 4 i + 1, 4 i + 3
    const Bytes first = _mm512_add_epi32(_mm512_slli_epi32(pairs, 2), _mm512_set1_epi32(1));
    return _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(2)), 16));
  }
};

}  // namespace

constexpr BlockTable kAvx512Blocks = make_blocks<Avx512Bytes>();

}  // namespace apex::kernels::statistics::cpu
