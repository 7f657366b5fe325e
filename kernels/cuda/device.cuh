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

// Within a unit in the last place of 1 / value, and of 1 / sqrt(value).
__device__ inline float estimated_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ inline float estimated_inverse_root(float value) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// The conversions to and from 16 bits. Any NaN becomes a NaN of the GPU's choice.
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

#if __CUDA_ARCH__ >= 800
__device__ inline uint16_t bfloat16_of_float(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

}  // namespace apex::kernels::cuda
