#include "tests/fuzz/counted_memory.h"

#include <c10/core/Allocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace apex::fuzz {
namespace {

std::atomic<size_t> live{0};
std::atomic<size_t> limit{std::numeric_limits<size_t>::max()};
std::atomic<size_t> refused{0};

class CountedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes > 0 ? ::operator new(bytes) : nullptr;
    return {data, data, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* data) { ::operator delete(data); }
};

}  // namespace

size_t live_bytes() { return live; }
size_t refused_bytes() { return refused; }

void set_memory_limit(size_t bytes) {
  limit = bytes;
  refused = 0;
}

void count_tensor_memory() {
  static CountedAllocator allocator;
  constexpr uint8_t kAboveTheDefault = 200;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, kAboveTheDefault);
}

}  // namespace apex::fuzz

void* operator new(size_t bytes) {
  using namespace apex::fuzz;
  if (live + bytes > limit || live + bytes < bytes) {
    refused = live + bytes;
    throw std::bad_alloc();
  }
  void* data = std::malloc(bytes > 0 ? bytes : 1);
  if (!data) throw std::bad_alloc();
  live += ::malloc_usable_size(data);
  return data;
}

void operator delete(void* data) noexcept {
  if (!data) return;
  apex::fuzz::live -= ::malloc_usable_size(data);
  std::free(data);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }
