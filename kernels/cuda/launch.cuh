#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace apex::kernels::cuda {

// The Block (updates.h) of a real device.
struct DeviceBlock {
  static constexpr size_t kSharedBytes = 2 * rules::kLanes * sizeof(double);

  void* memory;

  __device__ int64_t index() const { return blockIdx.x; }
  __device__ int64_t count() const { return gridDim.x; }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void barrier() const { __syncthreads(); }
  __device__ void* shared() const { return memory; }

  template <class Work>
  __device__ void each_thread(const Work& work) const {
    work(static_cast<int>(threadIdx.x));
  }

  __device__ bool is_last(uint32_t* ticket, uint32_t calls) const {
    BLOCK_SHARED(bool, last, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      last[0] = atomicInc(ticket, calls - 1) == calls - 1;  // wraps to 0 after the last call
      __threadfence();
    }
    __syncthreads();
    return last[0];
  }

  // Bypasses the first-level cache, which may hold an older value.
  template <class Value>
  __device__ Value read(const Value* address) const {
    return __ldcg(address);
  }
};

// The number of blocks of a kernel that the current device can run at the same time.
template <class Kernel>
cudaError_t resident_blocks(Kernel kernel, int threads, int* blocks) {
  int device = 0, multiprocessors = 0, each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0);
  *blocks = std::max(1, multiprocessors * each);
  return error;
}

// The blocks of a kernel whose blocks process `count` items in turn.
inline unsigned blocks_for(int64_t count) { return static_cast<unsigned>(std::min(count, kMostBlocks)); }

// Launches a kernel with a persistent grid: each block processes several parts in turn.
template <auto kKernel, class Op>
cudaError_t launch(const Table& table, const Op& op, int64_t parts, int threads, cudaStream_t stream) {
  // Queried once per kernel and device.
  static std::array<std::atomic<int>, 64> known{};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  std::atomic<int>& limit = known[static_cast<size_t>(device) % known.size()];
  int resident = limit.load(std::memory_order_relaxed);
  if (resident == 0) {
    error = resident_blocks(kKernel, threads, &resident);
    if (error != cudaSuccess) return error;
    limit.store(resident, std::memory_order_relaxed);
  }
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(parts, resident)));
  return launch_kernel(kKernel, blocks, static_cast<unsigned>(threads), stream, table, op);
}

}  // namespace apex::kernels::cuda
