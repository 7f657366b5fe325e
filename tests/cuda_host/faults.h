#pragma once

#include <cuda_runtime_api.h>

// Kernels with one fault each, with which faults_test.cpp tests the layer itself. `out` has room for 64 values.
namespace cuda_host::faults {

cudaError_t launch_half_a_barrier(int* out);         // threads wait at a barrier that the others never reach
cudaError_t launch_two_barriers(int* out);           // threads of a block wait at different barriers
cudaError_t launch_early_end(int* out);              // threads end while others wait at a barrier
cudaError_t launch_absent_lanes(int* out);           // a shuffle whose mask names lanes that have ended
cudaError_t launch_unnamed_lane(int* out);           // a shuffle by a lane that the mask does not name
cudaError_t launch_misaligned(int* out);             // an access of 16 bytes at an address that is a multiple of 4
cudaError_t launch_outside(int* out);                // an access behind the end of an array in shared memory
cudaError_t launch_too_many_threads(int* out);       // 1025 in a block
cudaError_t launch_unfilled(float* out);             // shared memory that nobody has written
cudaError_t launch_race_in_block(int* out);          // two threads write one value
cudaError_t launch_race_of_blocks(int* out);         // two blocks write one value
cudaError_t launch_race_with_atomic(unsigned* out);  // a plain store beside an atomic
cudaError_t launch_without_fault(int* out);          // sums over a block and a warp, for comparison

}  // namespace cuda_host::faults
