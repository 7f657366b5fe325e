#include <cstring>

#include "kernels/convolution/cpu/avx512_squares.h"
#include "kernels/convolution/cpu/pixel_products.h"

namespace apex::kernels::convolution::cpu {
namespace {

void transpose(const BFloat16Bits* from, int64_t from_step, Pair* to, int64_t to_step) {
  __m512 rows[kLanes];
  for (int row = 0; row < kLanes; ++row) rows[row] = _mm512_castsi512_ps(_mm512_loadu_si512(from + row * from_step));
  transpose_square(rows);
  for (int column = 0; column < kLanes; ++column) _mm512_store_ps(to + column * to_step, rows[column]);
}

__m512bh pair_everywhere(const BFloat16Bits* values) {
  int pair;
  std::memcpy(&pair, values, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// The products make zeros of subnormal sums, so the instruction that rounds may do the same.
void store_rounded(__m512 sums, BFloat16Bits* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(sums));
}

// Loops over sums are unrolled by order: else the compiler has them in memory before the first product and after the last.
template <int kPixels>
void multiply_pixels(const Product* products, int64_t count, const BFloat16Bits* pixels, const Pair* weights, const float* bias,
                     BFloat16Bits* to, int64_t to_step) {
  static_assert(kBlock == 2 * kLanes);
  const __m512 first = _mm512_loadu_ps(bias), second = _mm512_loadu_ps(bias + kLanes);
  __m512 sums[kPixels][2];
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) {
    sums[p][0] = first;
    sums[p][1] = second;
  }
  for (int64_t i = 0; i < count; ++i) {
    const BFloat16Bits* const pixel = pixels + products[i].pixel;
    const Pair* const weight = weights + products[i].weight;
#pragma GCC unroll 4
    for (int pair = 0; pair < kLanes; ++pair) {
      const auto first_weights = (__m512bh)_mm512_load_si512(weight + pair * kBlock);
      const auto second_weights = (__m512bh)_mm512_load_si512(weight + pair * kBlock + kLanes);
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) {
        const __m512bh values = pair_everywhere(pixel + p * kChunk + 2 * pair);
        sums[p][0] = _mm512_dpbf16_ps(sums[p][0], values, first_weights);
        sums[p][1] = _mm512_dpbf16_ps(sums[p][1], values, second_weights);
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) {
    store_rounded(sums[p][0], to + p * to_step);
    store_rounded(sums[p][1], to + p * to_step + kLanes);
  }
}

template <int kPixels>
void multiply_up_to(const Product* products, int64_t count, const BFloat16Bits* pixels, const Pair* weights, const float* bias,
                    int64_t size, BFloat16Bits* to, int64_t to_step) {
  if (size == kPixels) return multiply_pixels<kPixels>(products, count, pixels, weights, bias, to, to_step);
  if constexpr (kPixels > 1) multiply_up_to<kPixels - 1>(products, count, pixels, weights, bias, size, to, to_step);
}

}  // namespace

const PixelProducts kAvx512Bf16PixelProducts{transpose, multiply_up_to<kMaxPixels>};

}  // namespace apex::kernels::convolution::cpu
