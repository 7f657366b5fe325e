#pragma once

#include <vector_types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

// Runs the blocks of a launch: every thread is a fiber, one to four blocks are interleaved, and a seed decides which thread
// runs next. All of it happens on the calling thread.
namespace cuda_host {

struct Grid {
  dim3 blocks;
  unsigned threads;  // per block
};

// A launch whose kernel waits forever, or does what a GPU refuses. The message has the place in the kernel, and the seed.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The schedules of later launches. The environment variable CUDA_HOST_SEED, a number, is added to every seed.
void seed_schedules(uint64_t seed);

// A number below `limit`, from the same sequence.
uint64_t scheduled_choice(uint64_t limit);

// Calls `thread` once on every thread of the grid.
void run_grid(const Grid& grid, const std::function<void()>& thread);

// The bytes of memory in which the block's threads see what they have written as shared memory. `key` identifies the
// declaration.
void* shared_memory(const void* key, size_t bytes);

}  // namespace cuda_host
