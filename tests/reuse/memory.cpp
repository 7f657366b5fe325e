#include "tests/reuse/memory.h"

#include <cstddef>

#if defined(APEX_TEST_LSAN) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define APEX_TEST_COUNTS_BY_HOOKS
#include <atomic>
// Of sanitizer/allocator_interface.h, which GCC does not ship. A sanitizer's heap is not the one that mallinfo2 knows, and its
// own total counts small blocks by the batch.
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void*);
}
#else
#include <malloc.h>
#endif

#ifdef APEX_TEST_LSAN
#include <sanitizer/lsan_interface.h>
#include <sys/wait.h>
#include <unistd.h>

// The check is made by the tests: at exit it would report what libraries keep for the life of the process.
extern "C" const char* __lsan_default_options() { return "leak_check_at_exit=0"; }
#endif

namespace apex::test {

#ifdef APEX_TEST_COUNTS_BY_HOOKS

namespace {

std::atomic<int64_t> in_use{0};

void on_malloc(const volatile void*, size_t size) { in_use += static_cast<int64_t>(size); }
void on_free(const volatile void* block) {
  if (block) in_use -= static_cast<int64_t>(__sanitizer_get_allocated_size(block));
}
[[maybe_unused]] const int kInstalled = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

}  // namespace

int64_t bytes_in_use() { return in_use; }

#else

int64_t bytes_in_use() {
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

#endif

#ifdef APEX_TEST_LSAN

AllowLeaks::AllowLeaks() { __lsan_disable(); }
AllowLeaks::~AllowLeaks() { __lsan_enable(); }

namespace {

// A check that the system forbids ends the process, so the first one is a child's.
bool can_check() {
  const pid_t child = fork();
  if (child == 0) {
    __lsan_do_recoverable_leak_check();
    _exit(0);
  }
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

AllowLeaks::AllowLeaks() = default;
AllowLeaks::~AllowLeaks() {}

LeakCheck check_for_leaks() { return LeakCheck::unavailable; }

#endif

}  // namespace apex::test
