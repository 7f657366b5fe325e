#include "tests/reuse/memory.h"

#include <malloc.h>

#ifdef APEX_TEST_LSAN
#include <sanitizer/lsan_interface.h>
#include <sys/wait.h>
#include <unistd.h>

// Of sanitizer/allocator_interface.h, which GCC does not ship.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

// The check is made by the tests: at exit it would report what libraries keep for the life of the process.
extern "C" const char* __lsan_default_options() { return "leak_check_at_exit=0"; }
#endif

namespace apex::test {

#ifdef APEX_TEST_LSAN

size_t bytes_in_use() { return __sanitizer_get_current_allocated_bytes(); }

AllowLeaks::AllowLeaks() { __lsan_disable(); }
AllowLeaks::~AllowLeaks() { __lsan_enable(); }

namespace {

// A check that the system forbids ends the process, so the first one is a child's.
bool can_check() {
  const pid_t child = fork();
  if (child == 0) _exit(__lsan_do_recoverable_leak_check() < 2 ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

LeakCheck check_for_leaks() {
  static const bool possible = can_check();
  if (!possible) return LeakCheck::unavailable;
  return __lsan_do_recoverable_leak_check() == 0 ? LeakCheck::clean : LeakCheck::leaks;
}

#else

size_t bytes_in_use() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

AllowLeaks::AllowLeaks() = default;
AllowLeaks::~AllowLeaks() {}

LeakCheck check_for_leaks() { return LeakCheck::unavailable; }

#endif

}  // namespace apex::test
