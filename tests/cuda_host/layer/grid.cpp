#include "tests/cuda_host/layer/grid.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/cuda_host/layer/block.h"
#include "tests/cuda_host/layer/builtins.h"
#include "tests/cuda_host/sanitizers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_host {

Thread* current_thread = nullptr;

namespace {

// In which order the ready threads of a block run.
enum class Manner { random, first, last };
constexpr Manner kManners[] = {Manner::random, Manner::first, Manner::last, Manner::random};

constexpr uint64_t kMostResident = 4;
constexpr uint64_t kTurnsInBlock = 16;  // on average, before another block runs

std::mt19937_64 random_numbers;
uint64_t current_seed = 0;
const std::function<void()>* body;

void thread_main() {
  (*body)();
  current_thread->state = State::done;
  current_thread->fiber.leave(/*for_good=*/true);
}

uint3 index_of(const Grid& grid, uint64_t number) {
  return {static_cast<unsigned>(number % grid.blocks.x), static_cast<unsigned>(number / grid.blocks.x), 0};
}

size_t place_of_next(const std::vector<unsigned>& ready, Manner manner) {
  if (manner == Manner::first) return static_cast<size_t>(std::min_element(ready.begin(), ready.end()) - ready.begin());
  if (manner == Manner::last) return static_cast<size_t>(std::max_element(ready.begin(), ready.end()) - ready.begin());
  return scheduled_choice(ready.size());
}

Thread& take_next(Block& block, Manner manner) {
  std::vector<unsigned>& ready = block.ready;
  if (ready.empty()) block.report_deadlock();
  const size_t place = place_of_next(ready, manner);
  const unsigned number = ready[place];
  ready[place] = ready.back();
  ready.pop_back();
  return block.threads[number];
}

void take_turn(Block& block, Manner manner) {
  Thread& thread = take_next(block, manner);
  threadIdx = {thread.number, 0, 0};
  blockIdx = block.index;
  current_thread = &thread;
  thread.fiber.resume();
  current_thread = nullptr;
  block.after_turn(thread);
}

// The blocks of a launch, of which a few are resident at a time.
class Launch {
 public:
  explicit Launch(const Grid& grid)
      : grid_(grid),
        resident_limit_(1 + scheduled_choice(kMostResident)),
        manner_(kManners[scheduled_choice(std::size(kManners))]),
        waiting_(uint64_t{grid.blocks.x} * grid.blocks.y) {
    for (uint64_t i = 0; i < waiting_.size(); ++i) waiting_[i] = i;
    std::shuffle(waiting_.begin(), waiting_.end(), random_numbers);
  }

  void run() {
    size_t place = 0;
    while (fill()) {
      if (place >= resident_.size() || scheduled_choice(kTurnsInBlock) == 0) place = scheduled_choice(resident_.size());
      Block& block = *resident_[place];
      take_turn(block, manner_);
      if (block.is_done()) resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(place));
    }
  }

 private:
  bool fill() {
    while (!waiting_.empty() && resident_.size() < resident_limit_) {
      resident_.push_back(std::make_unique<Block>(index_of(grid_, waiting_.back()), grid_.threads, thread_main));
      waiting_.pop_back();
    }
    return !resident_.empty();
  }

  Grid grid_;
  uint64_t resident_limit_;
  Manner manner_;
  std::vector<uint64_t> waiting_;
  std::vector<std::unique_ptr<Block>> resident_;
};

// Around a launch, also if it fails.
struct LaunchScope {
  explicit LaunchScope(const std::function<void()>& thread) { body = &thread; }
  ~LaunchScope() {
    body = nullptr;
    current_thread = nullptr;
    Fiber::after_stops();
    SharedMemory::recycle();
  }
};

}  // namespace

void seed_schedules(uint64_t seed) {
  static const char* const added = std::getenv("CUDA_HOST_SEED");
  current_seed = seed + (added == nullptr ? 0 : std::strtoull(added, nullptr, 10));
  random_numbers.seed(current_seed);
}

uint64_t scheduled_choice(uint64_t limit) { return random_numbers() % limit; }

void run_grid(const Grid& grid, const std::function<void()>& thread) {
  if (body != nullptr) throw DeviceError("a kernel launches a kernel");
  const LaunchScope scope(thread);
  blockDim = {grid.threads, 1, 1};
  gridDim = grid.blocks;
  try {
    Launch(grid).run();
  } catch (const DeviceError& error) {
    throw DeviceError(error.what() + ("\n  seed " + std::to_string(current_seed)));
  }
}

void fail_in_kernel(const char* what, Place place) {
  current_thread->state = State::failed;
  current_thread->failure = what;
  current_thread->place = place;
  current_thread->fiber.leave();
  std::abort();  // is never resumed
}

Sanitizer sanitizer() {
#if defined(CUDA_HOST_TSAN)
  return Sanitizer::thread;
#elif defined(CUDA_HOST_ASAN)
  return Sanitizer::address;
#else
  return Sanitizer::none;
#endif
}

// What kernels call.

void* shared_memory(const void* key, size_t bytes) {
  void* const memory = current_thread->block->shared.find_or_add(key, bytes);
  if (memory == nullptr) fail_in_kernel("too much shared memory", {"a kernel", 0});
  return memory;
}

void wait_at_barrier(const char* file, int line) {
  Thread& thread = *current_thread;
  char* const phase = &thread.block->phase_objects[thread.block->phase % 2];
  release(phase);
  thread.place = {file, line};
  thread.state = State::at_barrier;
  thread.fiber.leave();
  acquire(phase);
}

unsigned lane() { return current_thread->number % kWarp; }

namespace {

// Not memcpy, which ThreadSanitizer sees.
void copy_word(unsigned char* to, const unsigned char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) const_cast<volatile unsigned char*>(to)[i] = from[i];
}

}  // namespace

void exchange(unsigned mask, unsigned from_lane, const void* mine, void* other, size_t bytes, const char* file, int line) {
  Thread& thread = *current_thread;
  const Place place{file, line};
  if (bytes > sizeof Warp{}.values[0][0]) fail_in_kernel("a shuffle of a large value", place);
  if ((mask >> lane() & 1) == 0) fail_in_kernel("a shuffle by a lane that its mask does not name", place);
  if (from_lane >= kWarp || (mask >> from_lane & 1) == 0)
    fail_in_kernel("a shuffle from a lane that its mask does not name", place);
  auto& row = thread.block->warps[thread.number / kWarp].values[thread.shuffles % 2];
  copy_word(row[lane()], static_cast<const unsigned char*>(mine), bytes);
  thread.place = place;
  thread.shuffle_mask = mask;
  thread.state = State::in_shuffle;
  ++thread.shuffles;
  thread.fiber.leave();
  copy_word(static_cast<unsigned char*>(other), row[from_lane], bytes);
}

// Two fences, with atomics on one address between them, order what precedes the first and what follows the second.
void fence() {
  Thread& thread = *current_thread;
  thread.has_fenced = true;
  for (unsigned i = 0; i < thread.atomic_count; ++i) acquire(thread.atomics[i]);
  thread.atomic_count = 0;
}

void before_atomic(void* address) {
  if (current_thread->has_fenced) release(address);
}

void after_atomic(void* address) {
  Thread& thread = *current_thread;
  void** const end = thread.atomics + thread.atomic_count;
  if (thread.atomic_count < Thread::kAtomics && std::find(thread.atomics, end, address) == end) {
    thread.atomics[thread.atomic_count++] = address;
  }
}

void check_alignment(const void* address, size_t bytes, const char* file, int line) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) fail_in_kernel("a misaligned access of several bytes", {file, line});
}

}  // namespace cuda_host
