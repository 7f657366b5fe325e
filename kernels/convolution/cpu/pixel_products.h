#pragma once

#include "kernels/convolution/cpu/pair_products.h"

// The loops of a convolution, and of the gradient of its input, that need AVX512-BF16 (see pair_products.h): sums over
// channels, of which two neighbouring ones are a pair.
namespace apex::kernels::convolution::cpu {

constexpr int64_t kChunk = 2 * kLanes;  // channels whose products are added up at a time
constexpr int64_t kMaxPixels = 14;      // that are summed at a time: 28 of 32 registers hold sums

// A chunk of pixels that are kChunk values apart, and its weights: [kLanes pairs][kBlock]. Both count from a place that they
// share with other products.
struct Product {
  int64_t pixel, weight;
};

struct PixelProducts {
  // to[column * to_step + row] = pair `column` of the values from row * from_step on; kLanes of each, `to` aligned to 64 bytes.
  void (*transpose)(const BFloat16Bits* from, int64_t from_step, Pair* to, int64_t to_step);
  // to[i * to_step + c] = bias[c] + the sum over `count` products of pixel i with the weights of c, rounded to nearest even; up
  // to kMaxPixels pixels, kBlock channels.
  void (*multiply)(const Product* products, int64_t count, const BFloat16Bits* pixels, const Pair* weights, const float* bias,
                   int64_t size, BFloat16Bits* to, int64_t to_step);
};

extern const PixelProducts kAvx512Bf16PixelProducts;

}  // namespace apex::kernels::convolution::cpu
