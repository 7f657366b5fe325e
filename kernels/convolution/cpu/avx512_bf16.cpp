#include "kernels/convolution/cpu/packed.h"

#include <immintrin.h>
#include <cstring>

// This file is compiled with AVX512-BF16 enabled.
namespace apex::kernels::convolution::cpu {
namespace {

// Swaps the off-diagonal halves of every block of `kWidth * 2` rows and columns. Widths 8, 4, 2 and 1 in turn transpose.
template <int kWidth>
void swap_halves(__m512 (&rows)[kLanes]) {
  alignas(64) int from_first[kLanes], from_second[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    from_first[i] = (i & kWidth) == 0 ? i : kLanes + (i - kWidth);
    from_second[i] = (i & kWidth) == 0 ? i + kWidth : kLanes + i;
  }
  const __m512i first_order = _mm512_load_si512(from_first), second_order = _mm512_load_si512(from_second);
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kWidth) != 0) continue;
    const __m512 above = rows[i], below = rows[i + kWidth];
    rows[i] = _mm512_permutex2var_ps(above, first_order, below);
    rows[i + kWidth] = _mm512_permutex2var_ps(above, second_order, below);
  }
}

void transpose_square(__m512 (&rows)[kLanes]) {
  swap_halves<8>(rows);
  swap_halves<4>(rows);
  swap_halves<2>(rows);
  swap_halves<1>(rows);
}

__mmask16 first(int64_t count) { return count >= kLanes ? 0xffff : static_cast<__mmask16>((1u << count) - 1u); }

// The permutation index that interleaves the values of two registers.
__m512i in_turn() {
  const __m512i index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_or_si512(index, _mm512_slli_epi32(_mm512_or_si512(index, _mm512_set1_epi32(32)), 16));
}

void interleave(const BFloat16Bits* one, const BFloat16Bits* other, int64_t step, int64_t channels, int64_t pixels, Pair* to,
                int64_t to_step) {
  const __m512i order = in_turn();
  const __mmask16 mask = first(channels), other_mask = other != nullptr ? mask : 0;
  if (other == nullptr) other = one;
  for (; pixels > 0; --pixels, one += step, other += step, to += to_step) {
    const __m512i low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, one));
    const __m512i high = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(other_mask, other));
    _mm512_store_si512(to, _mm512_permutex2var_epi16(low, order, high));
  }
}

template <int kRows, int kColumns>
void multiply_tile(const Pixels& pixels, const Pair* a_images, const Pair* b_images, bool add, float* sums) {
  constexpr int kVectors = kColumns / kLanes;
  __m512 sum[kRows][kVectors];
  for (auto& row : sum) {
    for (auto& vector : row) vector = _mm512_setzero_ps();
  }
  for (int64_t image = 0; image < pixels.images; ++image) {
    for (int64_t line = 0; line < pixels.rows; ++line) {
      const Pair* a = a_images + image * pixels.a_image + line * pixels.a_row;
      const Pair* b = b_images + image * pixels.b_image + line * pixels.b_row;
      for (int64_t i = 0; i < pixels.columns; ++i, a += pixels.a_column, b += kBlock) {
        __m512bh columns[kVectors];
        for (int v = 0; v < kVectors; ++v) columns[v] = (__m512bh)_mm512_load_si512(b + v * kLanes);
        for (int row = 0; row < kRows; ++row) {
          const auto channel = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[row]));
          for (int v = 0; v < kVectors; ++v) sum[row][v] = _mm512_dpbf16_ps(sum[row][v], channel, columns[v]);
        }
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = sums + row * kBlock + v * kLanes;
      _mm512_store_ps(to, add ? _mm512_add_ps(_mm512_load_ps(to), sum[row][v]) : sum[row][v]);
    }
  }
}

template <int kColumns>
void multiply_rows(const Pixels& pixels, const Pair* a, const Pair* b, int64_t rows, bool add, float* sums) {
  static_assert(kMinRows == 8 && kMaxRows == 12);
  switch (rows) {
    case 1:
      return multiply_tile<1, kColumns>(pixels, a, b, add, sums);
    case 8:
      return multiply_tile<8, kColumns>(pixels, a, b, add, sums);
    case 9:
      return multiply_tile<9, kColumns>(pixels, a, b, add, sums);
    case 10:
      return multiply_tile<10, kColumns>(pixels, a, b, add, sums);
    case 11:
      return multiply_tile<11, kColumns>(pixels, a, b, add, sums);
    default:
      return multiply_tile<12, kColumns>(pixels, a, b, add, sums);
  }
}

void multiply(const Pixels& pixels, const Pair* a, const Pair* b, int64_t rows, int64_t columns, bool add, float* sums) {
  columns == kBlock ? multiply_rows<kBlock>(pixels, a, b, rows, add, sums)
                    : multiply_rows<kLanes>(pixels, a, b, rows, add, sums);
}

// Rounds to nearest even, in integers: AVX512-BF16's own instruction flushes subnormal values to zero.
__m256i to_bfloat16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_add_epi32(below_half, is_odd, below_half, _mm512_set1_epi32(1));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000)), 16));
}

void round_square(const float* sums, int64_t rows, int64_t columns, BFloat16Bits* to, int64_t to_step) {
  __m512 lines[kLanes];
  for (int row = 0; row < kLanes; ++row) lines[row] = row < rows ? _mm512_load_ps(sums + row * kBlock) : _mm512_setzero_ps();
  transpose_square(lines);
  for (int column = 0; column < kLanes; ++column) {
    if (column < columns) _mm256_mask_storeu_epi16(to + column * to_step, first(rows), to_bfloat16(lines[column]));
  }
}

void round_transposed(const float* sums, int64_t rows, int64_t columns, BFloat16Bits* to, int64_t to_step) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      round_square(sums + row * kBlock + column, rows - row, columns - column, to + column * to_step + row, to_step);
    }
  }
}

}  // namespace

const PairProducts kAvx512Bf16Products{interleave, multiply, round_transposed};

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

// Uses AVX512-BF16's rounding instruction. It flushes subnormal values to zero, as the dot products have already done.
void store_rounded(__m512 sums, BFloat16Bits* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(sums));
}

// The unrolled loops let the compiler keep all sums in registers.
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
