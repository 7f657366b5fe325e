#pragma once

#include <cstdint>

// The loops of the weight gradient, and of packing weights, that need AVX512-BF16, whose products take two neighbouring
// bfloat16 values at a time and add both to one FP32 sum. The file that has them shares nothing else with the rest: it is
// compiled for that instruction set.
namespace apex::kernels::convolution::cpu {

constexpr int64_t kLanes = 16;          // pairs, or sums, in a register
constexpr int64_t kBlock = 2 * kLanes;  // channels whose results are summed at a time
constexpr int64_t kMaxRows = 12;        // input channels at a time: 24 of 32 registers hold sums
constexpr int64_t kMinRows = 8;         // what 16 channels or more are cut into at least

// Two values: of one channel at one pixel, of two images; or of a weight, of two channels.
using Pair = uint32_t;
using BFloat16Bits = uint16_t;

// Pixels of two images whose pairs are multiplied. Strides are in pairs; neighbouring pixels of `b` are kBlock apart.
struct Pixels {
  int64_t images, rows, columns;
  int64_t a_image, a_row, a_column;
  int64_t b_image, b_row;
};

struct PairProducts {
  // Writes `channels` (at most kLanes) pairs for each of `pixels` pixels that are `step` values apart, to `to`, `to_step` pairs
  // apart and aligned to 64 bytes each; the other lanes become 0. `second` may be null: its values are 0.
  void (*interleave)(const BFloat16Bits* first, const BFloat16Bits* second, int64_t step, int64_t channels, int64_t pixels,
                     Pair* to, int64_t to_step);
  // sums[row * kBlock + column] = or += sum over pixels of a[row] * b[column]; 1 or kMinRows to kMaxRows rows, kLanes or kBlock
  // columns. `a` has the same row at every pixel where its strides are 0.
  void (*multiply)(const Pixels& pixels, const Pair* a, const Pair* b, int64_t rows, int64_t columns, bool add, float* sums);
  // to[column * to_step + row] = sums[row * kBlock + column], rounded to nearest even.
  void (*round_transposed)(const float* sums, int64_t rows, int64_t columns, BFloat16Bits* to, int64_t to_step);
};

extern const PairProducts kAvx512Bf16Products;

}  // namespace apex::kernels::convolution::cpu
