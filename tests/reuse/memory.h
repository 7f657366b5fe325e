#pragma once

#include <cstdint>

// What the process holds on the heap, and what of it nobody can reach any more.
namespace apex::test {

/// Bytes on the heap that have not been freed, up to a constant.
int64_t bytes_in_use();

/// While it lives, this thread's allocations are no leaks: for what a library allocates once.
class AllowLeaks {
 public:
  AllowLeaks();
  ~AllowLeaks();
};

enum class LeakCheck { clean, leaks, unavailable };
/// Looks for unreachable allocations, and prints where they were made. Unavailable in a binary without LeakSanitizer, and where
/// the system forbids one process to look at another's threads, as some containers do.
LeakCheck check_for_leaks();

}  // namespace apex::test
