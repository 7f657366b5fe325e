#include "kernels/statistics/cpu/statistics_cpu.h"

#include <thrust/execution_policy.h>
#include <thrust/system/omp/execution_policy.h>

#include <algorithm>
#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/statistics/bins.h"
#include "kernels/statistics/passes.h"
#include "kernels/statistics/statistics.h"

namespace apex::kernels::statistics::cpu {
namespace {

template <class Real>
AddBlock<Real> current_add_block() {
  const BlockTable& table = kernels::cpu::of_current_isa<kPortableBlocks, kAvx2Blocks, kAvx512Blocks>();
  if constexpr (std::is_same_v<Real, float>) {
    return table.of_float;
  } else {
    return table.of_double;
  }
}

// Reads a tile block by block. Values not stored as Real are converted in a cache-sized buffer.
template <class Real>
struct ReduceTile {
  Job job;
  int64_t element_size;
  kernels::cpu::Reader<Real> read;
  AddBlock<Real> add_block;

  void operator()(int64_t index) const {
    const Tile tile = tile_at(job, index);
    const auto state = std::make_unique<TileState<Real>>();
    Sums lanes[kTileLanes];
    for (int strip = 0; strip < kStrips; ++strip) read_strip(tile.strip(strip), *state, lanes + strip * kLanes);
    for (int width = kTileLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) fold_lane(lanes, lane, width);
    }
    job.of_tile[index] = lanes[0];
    int64_t* const table = job.counts + tile.tensor * kBins<Real>;
    for (int bin = 0; bin < kBins<Real>; ++bin) {
      uint32_t count = 0;
      for (const auto& counts : state->counts) count += counts[bin];
      if (count != 0) add_count(table + bin, count);
    }
  }

  void read_strip(const Tile& strip, TileState<Real>& state, Sums* lanes) const {
    for (int i = 0; i < kLanes; ++i) state.sums[i] = state.squares[i] = 0, state.largest[i] = 0;
    add_values(static_cast<const char*>(job.rows[strip.tensor].data), strip, state);
    for (int i = 0; i < kLanes; ++i) lanes[i] = {state.sums[i], state.squares[i], value_of<Real>(state.largest[i])};
  }

  void add_values(const char* data, const Tile& strip, TileState<Real>& state) const {
    alignas(64) Real buffer[kBlock];
    for (int64_t begin = strip.begin; begin < strip.end; begin += kBlock) {
      const auto size = static_cast<int>(std::min<int64_t>(kBlock, strip.end - begin));
      const char* const stored = data + begin * element_size;
      if (read != nullptr) read(stored, buffer, size);
      add_block(read != nullptr ? buffer : reinterpret_cast<const Real*>(stored), size, state);
    }
  }
};

// A GPU block whose threads run one after another.
struct OneByOne {
  void barrier() const {}
  template <class Work>
  void each_thread(const Work& work) const {
    for (int thread = 0; thread < kTileLanes; ++thread) work(thread);
  }
};

template <class Stored>
struct ReadTileByLanes {
  Job job;
  void operator()(int64_t index) const {
    uint32_t counts[kBins<ComputesIn<Stored>>];
    Sums lanes[kTileLanes];
    read_tile<Stored>(OneByOne{}, job, index, counts, lanes);
  }
};

template <class Real>
void run_as(at::ScalarType dtype, const Job& job) {
  const ReduceTile<Real> reduce{job, static_cast<int64_t>(c10::elementSize(dtype)), kernels::cpu::reader<Real>(dtype),
                                current_add_block<Real>()};
  // For a single tile, starting threads costs more than it saves.
  job.tiles > 1 ? run_passes(thrust::omp::par, job, reduce) : run_passes(thrust::seq, job, reduce);
}

}  // namespace

void run(at::ScalarType dtype, const Job& job) {
  dtype == at::kDouble ? run_as<double>(dtype, job) : run_as<float>(dtype, job);
}

void run_by_lanes(at::ScalarType dtype, const Job& job) {
  with_dtype(dtype, [&](auto stored) { run_passes(thrust::omp::par, job, ReadTileByLanes<decltype(stored)>{job}); });
}

}  // namespace apex::kernels::statistics::cpu
