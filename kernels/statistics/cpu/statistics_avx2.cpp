#include <immintrin.h>

#include "kernels/statistics/cpu/float_blocks.h"

namespace apex::kernels::statistics::cpu {
namespace {

struct Avx2Bytes {
  using Bytes = __m256i;
  static constexpr int kBytes = 32;

  static Bytes load(const uint8_t* from) { return _mm256_load_si256(reinterpret_cast<const Bytes*>(from)); }
  static Bytes splat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static Bytes min(Bytes a, Bytes b) { return _mm256_min_epu8(a, b); }
  static Bytes max(Bytes a, Bytes b) { return _mm256_max_epu8(a, b); }
  static Bytes minus(Bytes a, Bytes b) { return _mm256_sub_epi8(a, b); }

  // One count per byte of a vector.
  struct Counter {
    static_assert(kBlock / kBytes < 256);
    Bytes counts = _mm256_setzero_si256();
    void add(Bytes keys, Bytes key) { counts = _mm256_sub_epi8(counts, _mm256_cmpeq_epi8(keys, key)); }
    uint32_t total() const {
      uint64_t of_eight[4];
      const Bytes sums = _mm256_sad_epu8(counts, _mm256_setzero_si256());
      memcpy(of_eight, &sums, sizeof of_eight);
      return static_cast<uint32_t>(of_eight[0] + of_eight[1] + of_eight[2] + of_eight[3]);
    }
  };

  static uint64_t find_keys(const float* values, uint8_t* keys) {
    const Bytes fraction = _mm256_set1_epi32(0x7fffff), none = _mm256_setzero_si256();
    Bytes powers[4], uppers[4];
    for (int i = 0; i < 4; ++i) {
      const Bytes some = _mm256_loadu_si256(reinterpret_cast<const Bytes*>(values + 8 * i));
      powers[i] = _mm256_cmpeq_epi32(_mm256_and_si256(some, fraction), none);
      uppers[i] = _mm256_srli_epi32(some, 16);
    }
    const Bytes is_power =
        _mm256_packs_epi16(_mm256_packs_epi32(powers[0], powers[1]), _mm256_packs_epi32(powers[2], powers[3]));
    const Bytes upper[] = {_mm256_packus_epi32(uppers[0], uppers[1]), _mm256_packus_epi32(uppers[2], uppers[3])};
    const Bytes found = _mm256_packus_epi16(key_of(upper[0]), key_of(upper[1]));
    _mm256_store_si256(reinterpret_cast<Bytes*>(keys), found);
    const Bytes is_near_next = _mm256_packs_epi16(is_near_next_of(upper[0]), is_near_next_of(upper[1]));
    const Bytes has_no_exponent = _mm256_or_si256(_mm256_cmpeq_epi8(found, none), _mm256_cmpeq_epi8(found, splat(255)));
    // The key of a zero has no exponent either, so zeros, unlike subnormal powers of two, are not rare.
    const Bytes rare = _mm256_or_si256(is_near_next, _mm256_xor_si256(is_power, has_no_exponent));
    // The pack instructions work within 128-bit halves; this restores the order.
    const Bytes in_order = _mm256_permutevar8x32_epi32(rare, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return static_cast<uint32_t>(_mm256_movemask_epi8(in_order));
  }

  struct LaneSums {
    static constexpr int kWide = 4;
    __m256d sums, squares;
    __m128i largest;

    void load(const TileState<float>& state, int lane) {
      sums = _mm256_load_pd(state.sums + lane), squares = _mm256_load_pd(state.squares + lane);
      largest = _mm_load_si128(reinterpret_cast<const __m128i*>(state.largest + lane));
    }
    void add(const float* values) {
      const __m128 some = _mm_loadu_ps(values);
      const __m256d wide = _mm256_cvtps_pd(some);
      sums = _mm256_add_pd(sums, wide);
      squares = _mm256_add_pd(squares, _mm256_mul_pd(wide, wide));
      largest = _mm_max_epu32(largest, _mm_and_si128(_mm_castps_si128(some), _mm_set1_epi32(0x7fffffff)));
    }
    void store(TileState<float>& state, int lane) const {
      _mm256_store_pd(state.sums + lane, sums), _mm256_store_pd(state.squares + lane, squares);
      _mm_store_si128(reinterpret_cast<__m128i*>(state.largest + lane), largest);
    }
  };

 private:
  static Bytes key_of(Bytes upper) { return _mm256_srli_epi16(_mm256_and_si256(upper, _mm256_set1_epi16(0x7fff)), 7); }
  static Bytes is_near_next_of(Bytes upper) {
    const Bytes top_of_fraction = _mm256_set1_epi16(0x7f);
    return _mm256_cmpeq_epi16(_mm256_and_si256(upper, top_of_fraction), top_of_fraction);
  }
};

}  // namespace

constexpr BlockTable kAvx2Blocks = make_blocks<Avx2Bytes>();

}  // namespace apex::kernels::statistics::cpu
