#pragma once

#include "kernels/statistics/order.h"

// One lane of a tile: what a thread of a GPU reads, next to its neighbours. Compiled for the host as well, where tests compare
// it.
namespace apex::kernels::statistics {

template <class Real>
HD inline void add_value(Sums& sums, Real value) {
  const auto magnitude = magnitude_of(value);
  if (magnitude >= kInfinity<Real>) return;
  const double wide = value, size = value_of<Real>(magnitude);
  sums = joined(sums, {wide, rules::multiply(wide, wide), size});
}

// Few enough bins for a table of the thread's own. float64 has more, which are counted where they are.
template <class Real>
class LaneCounts {
 public:
  HD explicit LaneCounts(int64_t* table) : table_(table) {}
  HD void add(int bin) { ++counts_[bin]; }
  HD void finish() const {
    for (int bin = 0; bin < kBins<Real>; ++bin) {
      if (counts_[bin] != 0) add_count(table_ + bin, counts_[bin]);
    }
  }

 private:
  static_assert(kTile / kLanes < 65536, "a lane's counts fit into 16 bits");
  int64_t* table_;
  uint16_t counts_[kBins<Real>] = {};
};

template <>
class LaneCounts<double> {
 public:
  HD explicit LaneCounts(int64_t* table) : table_(table) {}
  HD void add(int bin) { add_count(table_ + bin, 1); }
  HD void finish() const {}

 private:
  int64_t* table_;
};

// Index: kLanes for each tile.
template <class Stored>
struct ReduceLane {
  using Real = ComputesIn<Stored>;
  Job job;
  HD void operator()(int64_t index) const {
    const Tile tile = tile_at(job, index / kLanes);
    const auto* const data = static_cast<const Stored*>(job.rows[tile.tensor].data);
    LaneCounts<Real> counts(job.counts + tile.tensor * kBins<Real>);
    Sums sums{0, 0, 0};
    for (int64_t i = tile.begin + index % kLanes; i < tile.end; i += kLanes) {
      const Real value = rules::load<Real>(data[i]);
      add_value(sums, value);
      counts.add(bin_of<Real>(magnitude_of(value)));
    }
    counts.finish();
    job.lanes[index] = sums;
  }
};

}  // namespace apex::kernels::statistics
