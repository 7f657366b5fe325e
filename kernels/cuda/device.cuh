#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Everything in kernels that only a CUDA compiler can read: launches, shared memory, and instructions without an intrinsic.
// tests/cuda_host replaces this header and executes the kernels on a CPU.

// Declares an array in the shared memory of a block.
#define BLOCK_SHARED(Element, name, size) __shared__ Element name[size]

namespace apex::kernels::cuda {

// The most blocks of a launch whose work is one row or tile a block. Blocks take further ones in grid-stride loops.
constexpr int64_t kMostBlocks = 1 << 20;

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
                          const Arguments&... arguments) {
  kernel<<<grid, threads, 0, stream>>>(arguments...);
  return cudaGetLastError();
}

// The conversions of float16. Any NaN becomes a NaN of the GPU's choice.
__device__ inline float float_of_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

__device__ inline uint16_t half_of_float(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

}  // namespace apex::kernels::cuda
