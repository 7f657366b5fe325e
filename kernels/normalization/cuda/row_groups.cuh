#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/normalization/cuda/launch.h"

// Assigns rows to the threads of a device.
namespace apex::kernels::normalization::cuda {

constexpr int kThreads = kSlots * kWarp;

// The threads that share a row: one warp of the block, or the whole block.
template <int kCount>
struct DeviceGroup {
  static constexpr int kThreads = kCount;

  template <class T>
  struct PerThread {
    T value;
    __device__ T& operator[](int) { return value; }
  };

  template <class Work>
  __device__ void each_thread(const Work& work) {
    work(static_cast<int>(threadIdx.x) % kThreads);
  }

  template <class Real>
  __device__ Real sum(PerThread<Lanes<Real>>& lanes) {
    Real(&values)[kQuad] = lanes.value.values;
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int k = 0; k < kQuad; ++k) values[k] = add(values[k], __shfl_xor_sync(0xffffffffu, values[k], apart));
    }
    const Real total = fold<kQuad>(values);
    if constexpr (kThreads == kWarp) {
      return total;
    } else {
      return sum_of_warps(total);
    }
  }

 private:
  template <class Real>
  __device__ Real sum_of_warps(Real total) {
    BLOCK_SHARED(Real, totals, kSlots);
    __syncthreads();  // the previous sum has been read
    if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = total;
    __syncthreads();
    Real slots[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) slots[i] = totals[i];
    return fold<kSlots>(slots);
  }
};

// All threads of a group process the same rows.
template <template <class, class, class> class Row, class Kind, class Real, int kCount, class Args>
__global__ void __launch_bounds__(kThreads) rows_kernel(Args args) {
  constexpr int kGroups = kThreads / kCount;
  DeviceGroup<kCount> group;
  const int64_t first = int64_t{blockIdx.x} * kGroups + threadIdx.x / kCount;
  for (int64_t row = first; row < args.rows; row += int64_t{gridDim.x} * kGroups) {
    Row<Kind, Real, DeviceGroup<kCount>>(group, args, row).run();
  }
}

inline unsigned blocks_for(int64_t count, int64_t each) {
  const int64_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < kernels::cuda::kMostBlocks ? blocks : kernels::cuda::kMostBlocks);
}

// Uses one warp per row of one segment and one block per longer row. Float64 rows, which exist for testing, always get a block:
// most of it idles on short rows, but there is one kernel less to compile.
template <template <class, class, class> class Row, class Kind, class Real, class Args>
cudaError_t launch_rows(const Args& args, cudaStream_t stream) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (args.size <= kSegment) {
      return kernels::cuda::launch_kernel(rows_kernel<Row, Kind, Real, kWarp, Args>, blocks_for(args.rows, kSlots), kThreads,
                                          stream, args);
    }
  }
  return kernels::cuda::launch_kernel(rows_kernel<Row, Kind, Real, kThreads, Args>, blocks_for(args.rows, 1), kThreads, stream,
                                      args);
}

}  // namespace apex::kernels::normalization::cuda
