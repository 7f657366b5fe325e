#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

// What the changed sources of mutation.py include. All mutants are compiled into one build; APEX_MUTANT(n) is true while mutant
// n is switched on. No function here has external linkage: files that are compiled for AVX512 have copies of their own.
namespace apex_mutants {

inline constexpr int kLimit = 1 << 14;
inline constexpr int kRanks = 4;
inline int chosen = -1;                    // not yet read from the environment
inline unsigned char* reached = nullptr;   // kLimit bytes of a file that all processes of a test share: those of this rank
inline unsigned char* by_ranks = nullptr;  // the bytes of all ranks

[[maybe_unused]] static int rank() {
  const char* number = std::getenv("RANK");
  return number ? std::atoi(number) % kRanks : 0;
}

[[maybe_unused]] static void read_environment() {
  if (const char* path = std::getenv("APEX_MUTANTS_REACHED")) {
    const int file = ::open(path, O_RDWR);
    void* memory = file < 0 ? MAP_FAILED : ::mmap(nullptr, kRanks * kLimit, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) {
      __atomic_store_n(&by_ranks, static_cast<unsigned char*>(memory), __ATOMIC_RELAXED);
      __atomic_store_n(&reached, static_cast<unsigned char*>(memory) + rank() * kLimit, __ATOMIC_RELAXED);
    }
    if (file >= 0) ::close(file);
  }
  const char* number = std::getenv("APEX_MUTANT");
  __atomic_store_n(&chosen, number ? std::atoi(number) : 0, __ATOMIC_RELAXED);
}

// Relaxed: ThreadSanitizer sees neither a race here nor an order that would hide one of the library.
[[maybe_unused]] static bool is_on(int number) {
  if (__atomic_load_n(&chosen, __ATOMIC_RELAXED) < 0) read_environment();
  if (unsigned char* const numbers = __atomic_load_n(&reached, __ATOMIC_RELAXED))
    __atomic_store_n(numbers + number, 1, __ATOMIC_RELAXED);
  return __atomic_load_n(&chosen, __ATOMIC_RELAXED) == number;
}

/// A lock that a mutant does not take.
template <class Mutex>
class Lock {
 public:
  Lock(Mutex& mutex, bool off) : lock_(mutex, std::defer_lock) {
    if (!off) lock_.lock();
  }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace apex_mutants

#define APEX_MUTANT(number) (::apex_mutants::is_on(number))
