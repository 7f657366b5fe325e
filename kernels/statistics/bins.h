#pragma once

#include "kernels/rules/arithmetic.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

// The bins that values are counted in. Bins form rows of kParts: row 0 counts zeros (part 0), then there is one row per
// exponent of the format, and the last row counts Inf (part 0) and NaN (the other parts).
namespace apex::kernels::statistics {

constexpr int kParts = 4;  // parts of each exponent, as in ExponentCounts

// Formats with float32's exponents, and float64. kOneBelow: the exponent that would belong to row 0.
template <class Real>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127, kOneBelow = -150, kRows = 279;
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kOneBelow = -1075, kRows = 2100;
};

template <class Real>
constexpr int kBins = Format<Real>::kRows* kParts;

template <class Real>
constexpr typename Format<Real>::Bits kInfinity =
    typename Format<Real>::Bits{2 * Format<Real>::kBias + 1} << Format<Real>::kMantissa;

// A tag for template functions. A file compiled for one instruction set passes its own type, so that the linker cannot merge
// its instances with others.
struct AnyFile;

template <class Real, class File = AnyFile>
HD inline typename Format<Real>::Bits bits_of(Real value) {
  typename Format<Real>::Bits bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The bits of |value|.
template <class Real, class File = AnyFile>
HD inline typename Format<Real>::Bits magnitude_of(Real value) {
  return bits_of<Real, File>(value) & ~(typename Format<Real>::Bits{1} << (8 * sizeof(Real) - 1));
}

template <class Real, class File = AnyFile>
HD inline Real value_of(typename Format<Real>::Bits bits) {
  Real value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Subnormal values are integer multiples of the smallest one. Converted to Real, this integer is a normal value. Integer
// arithmetic is unaffected by flush-to-zero modes. There are no branches, so loops vectorize.
template <class Real, class File = AnyFile>
HD inline int bin_of(typename Format<Real>::Bits magnitude) {
  using Bits = typename Format<Real>::Bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr int kMantissa = Format<Real>::kMantissa;
  constexpr Bits kOne = Bits{1} << kMantissa;
  const bool is_subnormal = magnitude < kOne;
  const Bits integer = magnitude_of<Real, File>(static_cast<Real>(static_cast<Signed>(magnitude)));
  const Bits normal = is_subnormal ? integer : magnitude;
  // The integer 1 belongs to row 1; the smallest normal value belongs to the row after all subnormal values.
  const Signed shift = is_subnormal ? 1 - Format<Real>::kBias : kMantissa;
  // kParts times the exponent, plus the part: each term carries into the exponent from the fraction on where a part begins.
  const Bits exponents = (normal >> kMantissa) + ((normal + (kOne - 1)) >> kMantissa) + ((normal + (kOne >> 7)) >> kMantissa) +
                         ((normal + (kOne >> 10)) >> kMantissa);
  const auto bin = static_cast<int>(static_cast<Signed>(exponents) + kParts * shift);
  return bin < 0 ? 0 : bin;
}

// The order of sums. It depends on the shape alone, not on the device or the number of threads. A tensor is cut into tiles, a
// tile into kStrips strips. Within a strip, element i belongs to lane i % kLanes. The elements of a lane are added in order,
// the lanes of all strips of a tile are folded by halves, and the tiles of a tensor are added in order.

constexpr int kLanes = 32;
constexpr int kStrips = 8;
constexpr int kTileLanes = kStrips * kLanes;
constexpr int64_t kStripSize = kLanes * 512;
constexpr int64_t kTile = kStrips * kStripSize;

inline int64_t tiles_of(int64_t numel) { return (numel + kTile - 1) / kTile; }

// Sums over the finite values of a range of elements.
struct Sums {
  double sum, squares, abs_max;
};

HD inline Sums joined(const Sums& a, const Sums& b) {
  return {rules::add(a.sum, b.sum), rules::add(a.squares, b.squares), a.abs_max < b.abs_max ? b.abs_max : a.abs_max};
}

// One step of a fold: adds lane `lane + width` to lane `lane`, for lane < width.
HD inline void fold_lane(Sums* lanes, int lane, int width) { lanes[lane] = joined(lanes[lane], lanes[lane + width]); }

// The type of the arithmetic for elements stored as `Stored`.
template <class Stored>
using ComputesIn = std::conditional_t<std::is_same_v<Stored, double>, double, float>;

// A tensor: its data, and the index of its first tile among the tiles of all tensors.
struct Row {
  const void* data;
  int64_t numel, first_tile;
};

// Tensors of one dtype on one device, and buffers for the results. Everything lies in the memory of that device.
struct Job {
  const Row* rows;
  int64_t tensors, tiles;
  Sums* of_tile;    // one per tile
  Sums* of_tensor;  // one per tensor
  int64_t* counts;  // one table of bins per tensor; initially 0
};

// Adds up the tiles of a tensor, in order, after all of them have been read. The order of thrust::reduce depends on the back
// end, the device and the number of threads; so each sum is computed by a single index of a thrust::for_each_n.
struct AddTiles {
  Job job;
  HD void operator()(int64_t tensor) const {
    const int64_t end = tensor + 1 < job.tensors ? job.rows[tensor + 1].first_tile : job.tiles;
    Sums total{0, 0, 0};
    for (int64_t tile = job.rows[tensor].first_tile; tile < end; ++tile) total = joined(total, job.of_tile[tile]);
    job.of_tensor[tensor] = total;
  }
};

// The range of elements of a tile.
struct Tile {
  int64_t tensor, begin, end;

  // The range of a strip; end <= begin if the strip is empty.
  HD Tile strip(int index) const {
    const int64_t first = begin + index * kStripSize;
    return {tensor, first, first + kStripSize < end ? first + kStripSize : end};
  }
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

// Adds to a table that lanes and tiles share. Integer additions give the same total in any order.
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
  *total += count;  // this table belongs to one thread
#endif
}

// Reads a tile with a block of kTileLanes threads: a warp per strip, whose threads access adjacent elements. All threads share
// a table of counts. Also compiled for the host, where tests compare the results. kernels/cuda/updates.h describes `Block`.

// The sums of a lane.
template <class Real>
struct LaneSums {
  double sum = 0, squares = 0;
  typename Format<Real>::Bits largest = 0;

  HD void add(Real value) {
    const auto magnitude = magnitude_of(value);
    if (magnitude >= kInfinity<Real>) return;
    const double wide = value;
    sum = rules::add(sum, wide);
    squares = rules::add(squares, rules::multiply(wide, wide));
    largest = magnitude > largest ? magnitude : largest;
  }
  HD Sums total() const { return {sum, squares, value_of<Real>(largest)}; }
};

// Number of loads in flight before the first value is counted.
constexpr int kLoads = 8;

template <class Stored>
HD inline Sums read_lane(const Stored* data, const Tile& strip, int lane, uint32_t* counts) {
  using Real = ComputesIn<Stored>;
  LaneSums<Real> sums;
  const auto add = [&](Real value) {
    sums.add(value);
    add_count(counts + bin_of<Real>(magnitude_of(value)), 1u);
  };
  const Stored* from = data + strip.begin + lane;
  int left = static_cast<int>((strip.end - strip.begin - lane + kLanes - 1) / kLanes);  // elements; at most 0 if there is none
  for (; left >= kLoads; left -= kLoads, from += kLoads * kLanes) {
    Real values[kLoads];
    UNROLL for (int i = 0; i < kLoads; ++i) values[i] = rules::load<Real>(from[i * kLanes]);
    UNROLL for (int i = 0; i < kLoads; ++i) add(values[i]);
  }
  for (; left > 0; --left, from += kLanes) add(rules::load<Real>(*from));
  return sums.total();
}

// `counts` and `lanes`: the block's memory, of kBins and kTileLanes entries.
template <class Stored, class Block>
HD inline void read_tile(const Block& block, const Job& job, int64_t index, uint32_t* counts, Sums* lanes) {
  constexpr int kAll = kBins<ComputesIn<Stored>>;
  const Tile tile = tile_at(job, index);
  const auto* const data = static_cast<const Stored*>(job.rows[tile.tensor].data);
  block.each_thread([&](int thread) {
    for (int bin = thread; bin < kAll; bin += kTileLanes) counts[bin] = 0;
  });
  block.barrier();
  block.each_thread([&](int thread) { lanes[thread] = read_lane(data, tile.strip(thread / kLanes), thread % kLanes, counts); });
  block.barrier();
  block.each_thread([&](int thread) {
    for (int bin = thread; bin < kAll; bin += kTileLanes) {
      if (counts[bin] != 0) add_count(job.counts + tile.tensor * kAll + bin, int64_t{counts[bin]});
    }
  });
  for (int width = kTileLanes / 2; width > 0; width /= 2) {
    block.each_thread([&](int thread) {
      if (thread < width) fold_lane(lanes, thread, width);
    });
    block.barrier();
  }
  block.each_thread([&](int thread) {
    if (thread == 0) job.of_tile[index] = lanes[0];
  });
}

}  // namespace apex::kernels::statistics
