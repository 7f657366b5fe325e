#pragma once

#include <cstddef>

// Threads of execution that take turns on one thread of the system. A fiber has its own stack and runs until it leaves.
namespace cuda_host {

class Fiber {
 public:
  using Entry = void (*)();

  // Prepares the fiber to call `entry`, which must end with leave(true).
  void start(Entry entry);
  // Ends the fiber, whether or not `entry` has ended. Destructors on its stack do not run.
  void stop();
  // Called outside of fibers: runs the fiber until it leaves.
  void resume();
  // Called by the running fiber: returns to the caller of resume(), at the end for good.
  void leave(bool for_good = false);

  // Before fibers start and after the last one of a launch has stopped. To ThreadSanitizer, what precedes the first call
  // happens before the fibers, and they happen before what follows the second.
  static void before_starts();
  static void after_stops();

 private:
  // What later launches use again. Not the same launch: to ThreadSanitizer, the two fibers would be one.
  struct Reused {
    char* stack;
    void* tsan_fiber;
  };
  static Reused take();

  Reused reused_{};
  void* stack_pointer_ = nullptr;
  [[maybe_unused]] void* asan_stack_ = nullptr;

  friend struct ReusedFibers;
};

// Reports synchronization to ThreadSanitizer, without effect in other builds: what precedes release(object) on one
// fiber happens before what follows acquire(object) on another.
void release(void* object);
void acquire(void* object);

}  // namespace cuda_host
