#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/normalization/formulas.h"

// The order in which sums are taken: a matter of the shape alone, whatever computes them.
//
// Along a row: segments of kSegment elements belong to slots 0 ... kSlots - 1 in turn, and within a segment element i belongs
// to lane i % kLanes. Each lane of each slot is added up in order, the lanes of a slot are folded by halves, then the slots.
// That is a warp for every slot, with kQuad neighbouring lanes a thread, and on a CPU a handful of vector registers.
//
// Over the rows (gradients of weight and bias): rows are cut into blocks of rows_per_block(). Within a block they are added in
// order. Block b belongs to lane b % kBlockLanes; lanes are added up in order and folded by halves.
namespace apex::kernels::normalization {

constexpr int kQuad = 4;
constexpr int kWarp = 32;
constexpr int kLanes = kQuad * kWarp;
constexpr int kStrips = 8;  // rounds of all lanes in a segment
constexpr int kSegment = kLanes * kStrips;
constexpr int kSlots = 8;
constexpr int kBlockLanes = 16;

constexpr int64_t kMaxBlocks = 256;

// Few enough blocks for their sums to be a small part of what is moved, and enough of them to keep a device busy.
inline int64_t rows_per_block(int64_t rows, int64_t columns) {
  constexpr int64_t kMinRows = 8;
  constexpr int64_t kMinElements = 32768;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return std::max({ceil_div(rows, kMaxBlocks), ceil_div(kMinElements, std::max<int64_t>(columns, 1)), kMinRows});
}

// Folds `values` by halves until one is left.
template <int kCount, class V>
HD inline V fold(const V* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    V halves[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) halves[i] = add(values[i], values[i + kCount / 2]);
    return fold<kCount / 2>(halves);
  }
}

}  // namespace apex::kernels::normalization
