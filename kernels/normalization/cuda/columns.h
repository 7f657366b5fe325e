#pragma once

#include "kernels/normalization/cuda/rows.h"

// Kernel bodies for the gradients of weight and bias, in two stages: over the rows of each block, then over the blocks. Each
// thread has its own columns, so threads need no synchronization.
namespace apex::kernels::normalization::cuda {

// Sums over the rows of each block, [blocks, size]. Null if not needed.
template <class Real>
struct BlockSums {
  int64_t block_rows, blocks;
  Real* weight;
  Real* bias;
};

// Sums block `block` for the columns [kPair * pair, kPair * pair + kPair).
template <class Kind, class Real>
DEVICE_BODY void add_up_rows(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, int64_t block, int64_t pair) {
  const int64_t column = pair * kPair;
  const int64_t begin = block * sums.block_rows;
  const int64_t end = begin + sums.block_rows < args.rows ? begin + sums.block_rows : args.rows;
  Real weight[kPair] = {}, bias[kPair] = {};
  for (int64_t row = begin; row < end; row += kStrips) {
    const int count = end - row < kStrips ? static_cast<int>(end - row) : kStrips;
    const Walk walk{row * args.size + column, args.size, column, columns_left(args.size, column), 0, count};
    Strips<Real> dy, x_hat;
    load(args.grad_output, walk, dy);
    load(args.input_or_output, walk, x_hat);
    if (args.from_output) {
      Strips<Real> of_columns;
      const Walk columns{column, 0, column, columns_left(args.size, column), 0, count};
      load(args.weight, columns, of_columns, Real(1));
      recover<Kind>(args, of_columns, columns, x_hat);
    } else {
      normalize<Kind>(args, count, row, /*rows_apart=*/true, x_hat);
    }
    UNROLL for (int i = 0; i < kStrips; ++i) {
      UNROLL for (int k = 0; k < kPair; ++k) {
        if (i >= count) continue;
        weight[k] = add(weight[k], multiply(dy.values[i][k], x_hat.values[i][k]));
        bias[k] = add(bias[k], dy.values[i][k]);
      }
    }
  }
  UNROLL for (int k = 0; k < kPair; ++k) {
    if (column + k >= args.size) continue;
    if (sums.weight != nullptr) sums.weight[block * args.size + column + k] = weight[k];
    if (sums.bias != nullptr) sums.bias[block * args.size + column + k] = bias[k];
  }
}

// Sums one column over all blocks.
template <class Real>
DEVICE_BODY void add_up_blocks(const Real* sums, int64_t blocks, int64_t size, int64_t column, const Target& total) {
  Real lanes[kBlockLanes] = {};
  // Two rounds at a time: their loads wait for memory together.
  UNROLL_TWICE for (int64_t first = 0; first < blocks; first += kBlockLanes) {
    UNROLL for (int lane = 0; lane < kBlockLanes; ++lane) {
      if (first + lane < blocks) lanes[lane] = add(lanes[lane], sums[(first + lane) * size + column]);
    }
  }
  UNROLL for (int width = kBlockLanes / 2; width > 0; width /= 2) {
    UNROLL for (int lane = 0; lane < kBlockLanes / 2; ++lane) {
      if (lane < width) lanes[lane] = add(lanes[lane], lanes[lane + width]);
    }
  }
  with_element<Real>(total.storage, [&](auto element) {
    static_cast<decltype(element)*>(total.data)[column] = rules::store<decltype(element)>(lanes[0]);
  });
}

}  // namespace apex::kernels::normalization::cuda
