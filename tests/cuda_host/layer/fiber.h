#pragma once

#include <cstddef>

// Threads of execution that take turns on one thread of the system. A fiber has its own stack and runs until it leaves.
namespace cuda_host {

class Fiber {
 public:
  using Entry = void (*)();

  // Prepares the fiber to call `entry`, which must end with leave(true).
  void start(Entry entry);
  // Gives the stack back, whether or not `entry` has ended. Destructors on the stack do not run.
  void stop();
  // Called outside of fibers: runs the fiber until it leaves.
  void resume();
  // Called by the running fiber: returns to the caller of resume(), at the end for good.
  void leave(bool for_good = false);

  // Makes stacks that were given back available again. Under ThreadSanitizer, stop() does not: two fibers of one launch on one
  // stack would look like a race.
  static void recycle_stacks();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
  void* asan_stack_ = nullptr;
};

// What ThreadSanitizer is told about synchronization, without effect in other builds: what precedes release(object) on one
// fiber happens before what follows acquire(object) on another.
void release(void* object);
void acquire(void* object);

}  // namespace cuda_host
