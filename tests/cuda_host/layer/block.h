#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_host/layer/fiber.h"
#include "tests/cuda_host/layer/grid.h"

namespace cuda_host {

constexpr unsigned kWarp = 32;

// A line of a kernel. Files are compared by address.
struct Place {
  const char* file;
  int line;
};

enum class State { ready, at_barrier, in_shuffle, done, failed };

struct Block;

struct Thread {
  Fiber fiber;
  Block* block;
  unsigned number;
  State state = State::ready;
  Place place{"", 0};  // of the barrier or shuffle that it waits at, or of its failure
  const char* failure = "";

  unsigned shuffle_mask = 0;
  unsigned shuffles = 0;  // so far

  // Atomics since the last fence. Fibers allocate no memory: ThreadSanitizer would see one allocator used by many threads.
  static constexpr unsigned kAtomics = 16;
  void* atomics[kAtomics];
  unsigned atomic_count = 0;
  bool has_fenced = false;
};

// The values that the lanes of a warp exchange: in turns in one of two rows, so that a fast lane does not overwrite what a slow
// one has not read yet.
struct Warp {
  alignas(16) unsigned char values[2][kWarp][16];
};

// Memory for the shared arrays of a block, with gaps between them.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // nullptr if there is none left.
  void* find_or_add(const void* key, size_t bytes);

  static void recycle();  // as for stacks

 private:
  static constexpr unsigned kArrays = 16;
  struct {
    const void* key;
    void* memory;
  } arrays_[kArrays];
  unsigned count_ = 0;
  size_t used_;
  char* memory_;
};

// One resident block.
struct Block {
  Block(uint3 at, unsigned size, Fiber::Entry entry);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  bool is_done() const { return done == threads.size(); }
  // Wakes the threads that `thread`, which has just left, lets go on. Throws DeviceError if it can never be waited for.
  void after_turn(Thread& thread);
  // Throws DeviceError: no thread can go on.
  [[noreturn]] void report_deadlock() const;

  uint3 index;
  std::vector<Thread> threads;
  std::vector<unsigned> ready;
  std::vector<Warp> warps;
  SharedMemory shared;
  unsigned waiting = 0;  // at the barrier
  unsigned done = 0;
  unsigned phase = 0;       // of the barrier
  char phase_objects[2]{};  // by which ThreadSanitizer knows a phase

 private:
  void after_barrier(const Thread& thread);
  void after_shuffle(const Thread& thread);
  void wake(unsigned number);
};

[[noreturn]] void throw_device_error(const std::string& what, const Block& block);

// The running thread; nullptr outside of kernels.
extern Thread* current_thread;

// Called by the running thread: ends the launch with a DeviceError.
[[noreturn]] void fail_in_kernel(const char* what, Place place);

}  // namespace cuda_host
