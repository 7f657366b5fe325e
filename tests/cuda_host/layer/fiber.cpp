// Never instrumented itself: a sanitizer would take the switch of stacks for an error.
#include "tests/cuda_host/layer/fiber.h"

#include <sys/mman.h>

#include <new>
#include <vector>

#ifdef CUDA_HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDA_HOST_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifndef __x86_64__
#error "tests/cuda_host switches stacks on x86_64 only"
#endif

// Saves the callee-saved registers and the stack pointer, and loads those of another stack.
extern "C" void cuda_host_switch(void** save, void* load);
asm(R"(
.text
.globl cuda_host_switch
.hidden cuda_host_switch
.type cuda_host_switch,@function
cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_host_switch,.-cuda_host_switch
)");

namespace cuda_host {
namespace {

#if defined(CUDA_HOST_ASAN) || defined(CUDA_HOST_TSAN)
constexpr size_t kStack = 256 << 10;  // instrumented frames are larger
#else
constexpr size_t kStack = 64 << 10;
#endif
constexpr int kSavedRegisters = 6;

void* outside_stack_pointer;
char launch_begins, launch_ends;  // by which ThreadSanitizer knows these moments
#ifdef CUDA_HOST_ASAN
const void* outside_bottom;
size_t outside_size;
#endif
#ifdef CUDA_HOST_TSAN
void* outside_fiber;
#endif

Fiber::Entry entry_of_launch;

void first_frame() {
#ifdef CUDA_HOST_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom, &outside_size);
#endif
  acquire(&launch_begins);
  entry_of_launch();
}

}  // namespace

struct ReusedFibers {
  std::vector<Fiber::Reused> free, used;
};

namespace {

// Never destroyed: used until the program's end.
ReusedFibers& all_reused() {
  static auto* const all = new ReusedFibers;
  return *all;
}

}  // namespace

void Fiber::before_starts() { release(&launch_begins); }

void Fiber::after_stops() {
  acquire(&launch_ends);
  auto& [free, used] = all_reused();
  free.insert(free.end(), used.begin(), used.end());
  used.clear();
}

Fiber::Reused Fiber::take() {
  auto& free = all_reused().free;
  if (!free.empty()) {
    const Reused reused = free.back();
    free.pop_back();
    return reused;
  }
  void* const memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef CUDA_HOST_TSAN
  return {static_cast<char*>(memory), __tsan_create_fiber(0)};
#else
  return {static_cast<char*>(memory), nullptr};
#endif
}

void Fiber::start(Entry entry) {
  entry_of_launch = entry;
  reused_ = take();
  auto** top = reinterpret_cast<void**>(reused_.stack + kStack);
  *--top = nullptr;  // aligns the stack as a call does
  *--top = reinterpret_cast<void*>(&first_frame);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::stop() {
#ifdef CUDA_HOST_ASAN
  __asan_unpoison_memory_region(reused_.stack, kStack);
#endif
#ifdef CUDA_HOST_TSAN
  void* const outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(reused_.tsan_fiber, __tsan_switch_to_fiber_no_sync);
  release(&launch_ends);
  __tsan_switch_to_fiber(outside, __tsan_switch_to_fiber_no_sync);
  all_reused().used.push_back(reused_);
#else
  all_reused().free.push_back(reused_);
#endif
}

void Fiber::resume() {
#ifdef CUDA_HOST_ASAN
  void* outside_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&outside_fake_stack, reused_.stack, kStack);
#endif
#ifdef CUDA_HOST_TSAN
  outside_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(reused_.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  cuda_host_switch(&outside_stack_pointer, stack_pointer_);
#ifdef CUDA_HOST_ASAN
  __sanitizer_finish_switch_fiber(outside_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#ifdef CUDA_HOST_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &asan_stack_, outside_bottom, outside_size);
#endif
#ifdef CUDA_HOST_TSAN
  __tsan_switch_to_fiber(outside_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  cuda_host_switch(&stack_pointer_, outside_stack_pointer);
#ifdef CUDA_HOST_ASAN
  __sanitizer_finish_switch_fiber(asan_stack_, &outside_bottom, &outside_size);
#endif
}

#ifdef CUDA_HOST_TSAN
void release(void* object) { __tsan_release(object); }
void acquire(void* object) { __tsan_acquire(object); }
#else
void release(void*) {}
void acquire(void*) {}
#endif

}  // namespace cuda_host
