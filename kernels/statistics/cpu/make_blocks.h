#pragma once

#include "kernels/statistics/cpu/statistics_cpu.h"

// Loops for files that are each compiled for one instruction set; compilers vectorize them. Everything, including template
// instances, is local to the including file. float_blocks.h has a faster path for whole blocks of float32, for instruction
// sets with byte vectors.
namespace apex::kernels::statistics::cpu {
namespace {

struct ThisFile;

// The bin of each value of a block.
template <class Real>
void find_bins(const Real* values, int size, uint16_t* bins) {
#pragma omp simd
  for (int i = 0; i < size; ++i) {
    bins[i] = static_cast<uint16_t>(bin_of<Real, ThisFile>(magnitude_of<Real, ThisFile>(values[i])));
  }
}

template <class Real>
void count_bins(const uint16_t* bins, int size, TileState<Real>& state) {
  int i = 0;
  for (; i + kTables <= size; i += kTables) {
    for (int table = 0; table < kTables; ++table) ++state.counts[table][bins[i + table]];
  }
  for (; i < size; ++i) ++state.counts[0][bins[i]];
}

// Adds one value to each of the first `count` lanes. Inf and NaN count as 0.
template <class Real>
void add_row(const Real* values, int count, TileState<Real>& state) {
  using Bits = typename Format<Real>::Bits;
#pragma omp simd
  for (int lane = 0; lane < count; ++lane) {
    const Bits magnitude = magnitude_of<Real, ThisFile>(values[lane]);
    const Bits if_finite = Bits{0} - static_cast<Bits>(magnitude < kInfinity<Real>);
    const double value = value_of<Real, ThisFile>(bits_of<Real, ThisFile>(values[lane]) & if_finite);
    state.sums[lane] += value;
    state.squares[lane] += value * value;
    const Bits size = magnitude & if_finite, before = state.largest[lane];
    state.largest[lane] = size > before ? size : before;
  }
}

template <class Real>
void count_block(const Real* values, int size, TileState<Real>& state) {
  uint16_t bins[kBlock];
  find_bins(values, size, bins);
  count_bins(bins, size, state);
}

template <class Real>
void add_rows(const Real* values, int size, TileState<Real>& state) {
  int first = 0;
  for (; first + kLanes <= size; first += kLanes) add_row(values + first, kLanes, state);
  add_row(values + first, size - first, state);
}

template <class Real>
void add_block(const Real* values, int size, TileState<Real>& state) {
  count_block(values, size, state);
  add_rows(values, size, state);
}

}  // namespace
}  // namespace apex::kernels::statistics::cpu
