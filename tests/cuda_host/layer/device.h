#pragma once
// Included before everything else in a .cu file that is compiled for the host (-include). Defines CUDA's names for device code,
// and __CUDA_ARCH__, so that the parts of kernels/ that only a GPU has are compiled.
#include <cuda_runtime_api.h>
#include <math.h>
#include <vector_functions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include "tests/cuda_host/layer/builtins.h"

#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

#define CUDA_HOST_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_HOST_CALLER) { cuda_host::wait_at_barrier(file, line); }
inline void __threadfence() { cuda_host::fence(); }

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int apart, CUDA_HOST_CALLER) {
  Value other;
  cuda_host::exchange(mask, cuda_host::lane() ^ static_cast<unsigned>(apart), &value, &other, sizeof value, file, line);
  return other;
}

// Fibers leave at barriers and shuffles only, so nothing comes between the instructions of an atomic.
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  cuda_host::before_atomic(address);
  const unsigned before = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  cuda_host::after_atomic(address);
  return before;
}

inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  cuda_host::before_atomic(address);
  const unsigned long long before = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  cuda_host::after_atomic(address);
  return before;
}

inline unsigned atomicInc(unsigned* address, unsigned limit) {
  cuda_host::before_atomic(address);
  const unsigned before = __atomic_load_n(address, __ATOMIC_RELAXED);
  __atomic_store_n(address, before >= limit ? 0 : before + 1, __ATOMIC_RELAXED);
  cuda_host::after_atomic(address);
  return before;
}

template <class Value>
Value __ldcg(const Value* address, CUDA_HOST_CALLER) {
  cuda_host::check_alignment(address, sizeof(Value), file, line);
  return *address;
}

template <class Value>
void __stcg(Value* address, const Value& value, CUDA_HOST_CALLER) {
  cuda_host::check_alignment(address, sizeof(Value), file, line);
  *address = value;
}

#undef CUDA_HOST_CALLER

// Compiled with -ffp-contract=off: each rounds once.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }

// As in cuda_runtime.h, for a pointer to a kernel.
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel* kernel, int threads, size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}

// After the headers above, which would take this for nvcc.
#define __CUDA_ARCH__ 800
