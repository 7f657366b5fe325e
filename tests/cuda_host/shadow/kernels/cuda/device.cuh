#pragma once
// Replaces kernels/cuda/device.cuh where a .cu file is compiled for the host.
#include <cmath>

#include "tests/cuda_host/layer/grid.h"
#include "tests/cuda_host/layer/half.h"
#include "tests/cuda_host/runtime/launch.h"

#define BLOCK_SHARED(Element, name, size) \
  static char name##_key;                 \
  Element(&name)[size] = *static_cast<Element(*)[size]>(cuda_host::shared_memory(&name##_key, sizeof(Element[size])))

namespace apex::kernels::cuda {

// Few, so that tests with few rows have several rounds.
constexpr int64_t kMostBlocks = 7;

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
                          const Arguments&... arguments) {
  return cuda_host::launch({grid, threads}, stream, [=] { kernel(arguments...); });
}

inline float float_of_half(uint16_t half) { return cuda_host::float_of_half(half); }
inline uint16_t half_of_float(float value) { return cuda_host::half_of_float(value); }
inline uint16_t bfloat16_of_float(float value) { return cuda_host::bfloat16_of_float(value); }
// A GPU's estimates are off by up to a unit in the last place, in either direction, and take subnormal numbers for 0.
inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }
inline float estimate_of(float exact, bool from_below) {
  return std::isinf(exact) ? exact : flushed(std::nextafter(exact, from_below ? 0.0f : HUGE_VALF));
}
inline float estimated_reciprocal(float value) { return estimate_of(1.0f / flushed(value), value < 1); }
inline float estimated_inverse_root(float value) { return estimate_of(1.0f / std::sqrt(flushed(value)), value < 1); }

}  // namespace apex::kernels::cuda
