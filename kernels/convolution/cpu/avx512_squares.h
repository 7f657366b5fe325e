#pragma once

#include <immintrin.h>

#include "kernels/convolution/cpu/pair_products.h"

// For files that are compiled for AVX512 alone.
namespace apex::kernels::convolution::cpu {
namespace {

// Swaps halves of every `kWidth * 2` rows and columns; for 8, 4, 2 and 1 that transposes.
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

}  // namespace
}  // namespace apex::kernels::convolution::cpu
