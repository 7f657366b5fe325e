#pragma once

#include <vector_types.h>

#include <cstddef>

// What kernels can ask of the layer: device.h gives it CUDA's names.

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace cuda_host {

void wait_at_barrier(const char* file, int line);
void fence();
// Gives `mine` to the lanes of the warp, and takes the value of another lane.
void exchange(unsigned mask, unsigned from_lane, const void* mine, void* other, size_t bytes, const char* file, int line);
unsigned lane();
void before_atomic(void* address);
void after_atomic(void* address);
void check_alignment(const void* address, size_t bytes, const char* file, int line);

}  // namespace cuda_host
