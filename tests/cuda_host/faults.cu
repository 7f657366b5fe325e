#include "tests/cuda_host/faults.h"

#include "kernels/cuda/device.cuh"

namespace cuda_host::faults {
namespace {

using apex::kernels::cuda::launch_kernel;

constexpr unsigned kThreads = 64, kWarp = 32, kAllLanes = 0xffffffffu;

template <class Value>
cudaError_t launch_one(void (*kernel)(Value*), Value* out, unsigned blocks = 1, unsigned threads = kThreads) {
  return launch_kernel(kernel, blocks, threads, nullptr, out);
}

__global__ void half_a_barrier(int* out) {
  if (threadIdx.x < kWarp) __syncthreads();
  if (threadIdx.x != kThreads - 1) out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
}

__global__ void two_barriers(int* out) {
  if (threadIdx.x < kWarp) {
    __syncthreads();  // of the first warp
  } else {
    __syncthreads();  // of the second warp
  }
  out[threadIdx.x] = 1;
}

__global__ void early_end(int* out) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void absent_lanes(int* out) {
  if (threadIdx.x % 2 == 0) return;
  out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 2);
}

__global__ void unnamed_lane(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }

__global__ void misaligned(int* out) {
  const auto* const from = reinterpret_cast<const uint4*>(out + 1);
  if (threadIdx.x == 0) out[0] = static_cast<int>(__ldcg(from).x);
}

__global__ void outside(int* out) {
  BLOCK_SHARED(int, values, kThreads);
  values[threadIdx.x] = 1;
  __syncthreads();
  const int* const from = values;
  out[threadIdx.x] = from[threadIdx.x + 1];
}

__global__ void unfilled(float* out) {
  BLOCK_SHARED(float, values, kThreads);
  out[threadIdx.x] = values[threadIdx.x];
}

__global__ void race_in_block(int* out) { out[0] = static_cast<int>(threadIdx.x); }
__global__ void race_of_blocks(int* out) {
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);
}

__global__ void race_with_atomic(unsigned* out) {
  if (threadIdx.x == 0) out[0] = 0;
  atomicAdd(out, 1u);
}

__global__ void without_fault(int* out) {
  BLOCK_SHARED(int, values, kThreads);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) values[threadIdx.x] += values[threadIdx.x + width];
  }
  __syncthreads();
  int of_warp = static_cast<int>(threadIdx.x);
  for (int apart = 1; apart < static_cast<int>(kWarp); apart *= 2) of_warp += __shfl_xor_sync(kAllLanes, of_warp, apart);
  out[blockIdx.x * kThreads + threadIdx.x] = values[0] + of_warp;
}

}  // namespace

cudaError_t launch_half_a_barrier(int* out) { return launch_one(half_a_barrier, out); }
cudaError_t launch_two_barriers(int* out) { return launch_one(two_barriers, out); }
cudaError_t launch_early_end(int* out) { return launch_one(early_end, out); }
cudaError_t launch_absent_lanes(int* out) { return launch_one(absent_lanes, out); }
cudaError_t launch_unnamed_lane(int* out) { return launch_one(unnamed_lane, out); }
cudaError_t launch_misaligned(int* out) { return launch_one(misaligned, out); }
cudaError_t launch_outside(int* out) { return launch_one(outside, out); }
cudaError_t launch_too_many_threads(int* out) { return launch_one(race_in_block, out, 1, 1025); }
cudaError_t launch_unfilled(float* out) { return launch_one(unfilled, out); }
cudaError_t launch_race_in_block(int* out) { return launch_one(race_in_block, out); }
cudaError_t launch_race_of_blocks(int* out) { return launch_one(race_of_blocks, out, 2); }
cudaError_t launch_race_with_atomic(unsigned* out) { return launch_one(race_with_atomic, out); }
cudaError_t launch_without_fault(int* out) { return launch_one(without_fault, out, 3); }

}  // namespace cuda_host::faults
