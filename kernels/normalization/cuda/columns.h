#pragma once

#include "kernels/normalization/cuda/rows.h"

// Kernel bodies for the gradients of weight and bias, in two stages: over the rows of each block, then over the blocks.
namespace apex::kernels::normalization::cuda {

// Sums over the rows of each block, [blocks, size]. Null if not needed.
template <class Real>
struct BlockSums {
  int64_t block_rows, blocks;
  Real* weight;
  Real* bias;
};

// Sums block `block` for the columns [kPair * pair, kPair * pair + kPair).
template <class Kind, class Access, class Real>
DEVICE_BODY void add_up_rows(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, int64_t block, int64_t pair) {
  const int64_t column = pair * kPair;
  const int64_t begin = block * sums.block_rows;
  const int64_t end = begin + sums.block_rows < args.rows ? begin + sums.block_rows : args.rows;
  Real weight[kPair] = {}, bias[kPair] = {};
  for (int64_t row = begin; row < end; row += kStrips) {
    const int count = end - row < kStrips ? static_cast<int>(end - row) : kStrips;
    const Walk walk{row * args.size + column, args.size, column, columns_left(args.size, column), 0, count};
    typename Access::Fetched grad_output, saved;
    Access::fetch(args.grad_output, walk, grad_output);
    Access::fetch(args.input_or_output, walk, saved);
    RowStatistics<Real> rows[kStrips];
    UNROLL for (int i = 0; i < kStrips; ++i) rows[i] = i < count ? saved_statistics(args, row + i) : RowStatistics<Real>{};
    Strips<Real> x_hat;
    normalize<Kind, Access>(
        args, saved, {column, 0, column, walk.left, 0, count}, [&](int i) { return rows[i]; }, x_hat);
    UNROLL for (int i = 0; i < kStrips; ++i) {
      if (i >= count) break;
      UNROLL for (int k = 0; k < kPair; ++k) {
        const Real dy = Access::value(grad_output, i, k);
        weight[k] = add(weight[k], multiply(dy, x_hat.values[i][k]));
        bias[k] = add(bias[k], dy);
      }
    }
  }
  UNROLL for (int k = 0; k < kPair; ++k) {
    if (column + k >= args.size) continue;
    if (sums.weight != nullptr) sums.weight[block * args.size + column + k] = weight[k];
    if (sums.bias != nullptr) sums.bias[block * args.size + column + k] = bias[k];
  }
}

// The threads that share a column of blocks. Thread t has every kTotalShares-th lane, from t on.
constexpr int kTotalShares = 2;

// The fold of the thread's lanes: a step of the fold of all lanes.
template <class Real>
DEVICE_BODY Real add_up_share(const Real* sums, int64_t blocks, int64_t size, int64_t column, int thread) {
  constexpr int kShareLanes = kBlockLanes / kTotalShares;
  Real lanes[kShareLanes] = {};
  const Real* from = sums + thread * size + column;
  const int64_t step = kTotalShares * size;
  int64_t left = (blocks - thread + kTotalShares - 1) / kTotalShares;
  for (; left >= kShareLanes; left -= kShareLanes, from += kShareLanes * step) {
    UNROLL for (int i = 0; i < kShareLanes; ++i) lanes[i] = add(lanes[i], from[i * step]);
  }
  UNROLL for (int i = 0; i < kShareLanes; ++i) {
    if (i < left) lanes[i] = add(lanes[i], from[i * step]);
  }
  return fold<kShareLanes>(lanes);
}

// The total of a column, from its shares.
template <class Real>
DEVICE_BODY void store_total(const Real* shares, int64_t column, const Target& total) {
  const Real sum = fold<kTotalShares>(shares);
  with_element<Real>(total.storage, [&](auto element) {
    static_cast<decltype(element)*>(total.data)[column] = rules::store<decltype(element)>(sum);
  });
}

}  // namespace apex::kernels::normalization::cuda
