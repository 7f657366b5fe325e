#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/rules/arithmetic.h"
#include "kernels/statistics/bins.h"

// The order in which sums are taken: a matter of the shape alone, whatever computes them. A tensor is cut into tiles. Within a
// tile element i belongs to lane i % kLanes; each lane is added up in order, the lanes are folded by halves, and the tiles of a
// tensor are added up in order.
namespace apex::kernels::statistics {

constexpr int kLanes = 32;
constexpr int64_t kTile = kLanes * 4096;

inline int64_t tiles_of(int64_t numel) { return (numel + kTile - 1) / kTile; }

// Of the finite values among some elements.
struct Sums {
  double sum, squares, abs_max;
};

HD inline Sums joined(const Sums& a, const Sums& b) {
  return {rules::add(a.sum, b.sum), rules::add(a.squares, b.squares), a.abs_max < b.abs_max ? b.abs_max : a.abs_max};
}

// What elements stored so are read as.
template <class Stored>
using ComputesIn = std::conditional_t<std::is_same_v<Stored, double>, double, float>;

// A tensor: where its elements are, and the first of its tiles among those of all tensors.
struct Row {
  const void* data;
  int64_t numel, first_tile;
};

// Tensors of one dtype on one device, and room for what is found in them, all in the memory of that device.
struct Job {
  const Row* rows;
  int64_t tensors, tiles;
  Sums* lanes;      // kLanes for each tile
  Sums* of_tile;    // one for each tile
  Sums* of_tensor;  // one for each tensor
  int64_t* counts;  // a table of bins for each tensor; starts as 0
};

// The elements of a tile.
struct Tile {
  int64_t tensor, begin, end;
};

HD inline Tile tile_at(const Job& job, int64_t index) {
  int64_t first = 0, last = job.tensors - 1;  // the last row that begins at or before the tile
  while (first < last) {
    const int64_t middle = (first + last + 1) / 2;
    if (job.rows[middle].first_tile <= index) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  const Row& row = job.rows[first];
  const int64_t begin = (index - row.first_tile) * kTile;
  return {first, begin, begin + kTile < row.numel ? begin + kTile : row.numel};
}

// Counts of different lanes, and of different tiles, go to one table. Integers: in any order.
HD inline void add_count(int64_t* total, int64_t count) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(count));
#else
  __atomic_fetch_add(total, count, __ATOMIC_RELAXED);
#endif
}

HD inline void add_count(uint32_t* total, uint32_t count) {
#ifdef __CUDA_ARCH__
  atomicAdd(total, count);
#else
  *total += count;  // a table of one thread's own
#endif
}

}  // namespace apex::kernels::statistics
