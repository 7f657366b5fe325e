#include "kernels/statistics/cpu/statistics_cpu.h"

#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/omp/execution_policy.h>

#include <algorithm>
#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/statistics/bins.h"

namespace apex::kernels::statistics::cpu {
namespace {

template <class Real>
AddBlock<Real> current_add_block() {
  return kernels::cpu::of_real<Real>(kernels::cpu::of_current_isa<kPortableBlocks, kAvx2Blocks, kAvx512Blocks>());
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

template <class Policy, class Read>
void run_passes(const Policy& policy, const Job& job, const Read& read) {
  thrust::for_each_n(policy, thrust::counting_iterator<int64_t>(0), job.tiles, read);
  thrust::for_each_n(policy, thrust::counting_iterator<int64_t>(0), job.tensors, AddTiles{job});
}

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

}  // namespace apex::kernels::statistics::cpu
