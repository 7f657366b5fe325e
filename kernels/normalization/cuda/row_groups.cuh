#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/normalization/cuda/launch.h"

// Assigns rows to the threads of a device.
namespace apex::kernels::normalization::cuda {

constexpr int kWarp = 32;
static_assert(kSlotThreads == 2 * kWarp);

// Threads that a multiprocessor should hold, to keep its memory busy: it limits the registers of a thread. More would spill.
template <class Args>
constexpr int kThreadsAtOnce = 1024;
template <class Real>
constexpr int kThreadsAtOnce<BackwardArgs<Real>> = 768;

// The threads that share a row, a block: those of one slot, of four, or of all slots.
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
    work(static_cast<int>(threadIdx.x));
  }

  // Both warps of a slot compute its totals, from each other's lanes.
  template <class Real, int kSums>
  __device__ Totals<Real, kSums> sums(PerThread<Lanes<Real>> (&lanes)[kSums]) {
    turn_ ^= 1;
    const auto shared = exchange<Real>() + turn_ * kMostSums;
#pragma unroll
    for (int s = 0; s < kSums; ++s) shared[s][threadIdx.x] = lanes[s].value;
    __syncthreads();
    Totals<Real, kSums> totals;
#pragma unroll
    for (int s = 0; s < kSums; ++s) totals.of[s] = sum_of_slot(lanes[s].value, shared[s][threadIdx.x ^ kWarp]);
    if constexpr (kThreads != kSlotThreads) sum_slots(totals);
    return totals;
  }

 private:
  static constexpr int kMostSums = 2;  // that are taken together

  // Memory for two rounds of sums, which take turns: a thread writes the next sums' lanes while others still read the last
  // ones'.
  template <class Real>
  __device__ static Lanes<Real> (*exchange())[kThreads] {
    using Row = Lanes<Real>[kThreads];
    BLOCK_SHARED(Row, lanes, 2 * kMostSums);
    return lanes;
  }

  template <class Real>
  __device__ static Real sum_of_slot(Lanes<Real> lanes, const Lanes<Real>& others) {
#pragma unroll
    for (int k = 0; k < kPair; ++k) lanes.values[k] = add(lanes.values[k], others.values[k]);
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int k = 0; k < kPair; ++k) {
        lanes.values[k] = add(lanes.values[k], __shfl_xor_sync(0xffffffffu, lanes.values[k], apart));
      }
    }
    return fold<kPair>(lanes.values);
  }

  template <class Real, int kSums>
  __device__ void sum_slots(Totals<Real, kSums>& totals) const {
    constexpr int kUsed = kThreads / kSlotThreads;  // the sums of other slots are 0, and change nothing
    using Slots = Totals<Real, kSums>[kUsed];
    BLOCK_SHARED(Slots, slots, 2);
    if (threadIdx.x % kSlotThreads == 0) slots[turn_][threadIdx.x / kSlotThreads] = totals;
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      Real values[kUsed];
#pragma unroll
      for (int i = 0; i < kUsed; ++i) values[i] = slots[turn_][i].of[s];
      totals.of[s] = fold<kUsed>(values);
    }
  }

  int turn_ = 0;
};

// All threads of a block process the same rows.
template <template <class, class, class> class Row, class Kind, class Access, int kCount, class Args>
__global__ void __launch_bounds__(kCount, kThreadsAtOnce<Args> / kCount) rows_kernel(Args args) {
  DeviceGroup<kCount> group;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    Row<Kind, Access, DeviceGroup<kCount>>(group, args, row).run();
  }
}

template <int kUsedSlots, template <class, class, class> class Row, class Kind, class Access, class Args>
cudaError_t launch_slots(const Args& args, cudaStream_t stream) {
  constexpr int kThreads = kUsedSlots * kSlotThreads;
  return kernels::cuda::launch_kernel(rows_kernel<Row, Kind, Access, kThreads, Args>, kernels::cuda::blocks_for(args.rows),
                                      kThreads, stream, args);
}

// Uses the slots that have segments of a row: one, up to four, or all. Float64 rows, which exist for testing, always get all:
// most of them idle on short rows, but there are two kernels less to compile.
template <template <class, class, class> class Row, class Kind, class Access, class Args>
cudaError_t launch_access(const Args& args, cudaStream_t stream) {
  if constexpr (sizeof(typename Access::Real) == sizeof(float)) {
    if (args.size <= kSegment) return launch_slots<1, Row, Kind, Access>(args, stream);
    if (args.size <= 4 * kSegment) return launch_slots<4, Row, Kind, Access>(args, stream);
  }
  return launch_slots<kSlots, Row, Kind, Access>(args, stream);
}

template <template <class, class, class> class Row, class Kind, class Real, class Args>
cudaError_t launch_rows(const Args& args, cudaStream_t stream) {
  return with_access<Real>(args.mix, [&](auto access) { return launch_access<Row, Kind, decltype(access)>(args, stream); });
}

}  // namespace apex::kernels::normalization::cuda
