#pragma once

#include "kernels/statistics/order.h"

// A tile as a block of kLanes threads reads it, each lane next to its neighbours, with a table of counts that they share.
// Compiled for the host as well, where tests compare it. `Block` is what kernels/cuda/update_pass.h says.
namespace apex::kernels::statistics {

template <class Real>
HD inline void add_value(Sums& sums, Real value) {
  const auto magnitude = magnitude_of(value);
  if (magnitude >= kInfinity<Real>) return;
  const double wide = value, size = value_of<Real>(magnitude);
  sums = joined(sums, {wide, rules::multiply(wide, wide), size});
}

// As many loads as are under way before the first value is counted.
constexpr int kStrip = 8;

template <class Stored>
HD inline Sums read_lane(const Job& job, const Tile& tile, int lane, uint32_t* counts) {
  using Real = ComputesIn<Stored>;
  const auto* const data = static_cast<const Stored*>(job.rows[tile.tensor].data);
  Sums sums{0, 0, 0};
  for (int64_t first = tile.begin + lane; first < tile.end; first += kStrip * kLanes) {
    Real values[kStrip];
    const auto is_there = [&](int i) { return first + i * kLanes < tile.end; };
    for (int i = 0; i < kStrip; ++i) values[i] = is_there(i) ? rules::load<Real>(data[first + i * kLanes]) : Real{0};
    for (int i = 0; i < kStrip && is_there(i); ++i) {
      add_value(sums, values[i]);
      add_count(counts + bin_of<Real>(magnitude_of(values[i])), 1u);
    }
  }
  return sums;
}

// `counts`: room for kBins, of the block.
template <class Stored, class Block>
HD inline void read_tile(const Block& block, const Job& job, int64_t index, uint32_t* counts) {
  constexpr int kAll = kBins<ComputesIn<Stored>>;
  const Tile tile = tile_at(job, index);
  block.each_thread([&](int lane) {
    for (int bin = lane; bin < kAll; bin += kLanes) counts[bin] = 0;
  });
  block.barrier();
  block.each_thread([&](int lane) { job.lanes[index * kLanes + lane] = read_lane<Stored>(job, tile, lane, counts); });
  block.barrier();
  block.each_thread([&](int lane) {
    for (int bin = lane; bin < kAll; bin += kLanes) {
      if (counts[bin] != 0) add_count(job.counts + tile.tensor * kAll + bin, int64_t{counts[bin]});
    }
  });
}

}  // namespace apex::kernels::statistics
