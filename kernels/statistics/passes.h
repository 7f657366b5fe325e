#pragma once

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include "kernels/statistics/bins.h"

// Thrust passes, for any back end that the policy selects. The order of thrust::reduce depends on the back end, the device and
// the number of threads; so here each sum is computed by a single index of a for_each.
namespace apex::kernels::statistics {

// Adds up the tiles of a tensor, in order.
struct AddTiles {
  Job job;
  HD void operator()(int64_t tensor) const {
    const int64_t end = tensor + 1 < job.tensors ? job.rows[tensor + 1].first_tile : job.tiles;
    Sums total{0, 0, 0};
    for (int64_t tile = job.rows[tensor].first_tile; tile < end; ++tile) total = joined(total, job.of_tile[tile]);
    job.of_tensor[tensor] = total;
  }
};

// Runs after all tiles have been read.
template <class Policy>
void add_up_tiles(const Policy& policy, const Job& job) {
  thrust::for_each_n(policy, thrust::counting_iterator<int64_t>(0), job.tensors, AddTiles{job});
}

// read(tile) must compute the tile's sums and add its counts.
template <class Policy, class Read>
void run_passes(const Policy& policy, const Job& job, const Read& read) {
  thrust::for_each_n(policy, thrust::counting_iterator<int64_t>(0), job.tiles, read);
  add_up_tiles(policy, job);
}

}  // namespace apex::kernels::statistics
