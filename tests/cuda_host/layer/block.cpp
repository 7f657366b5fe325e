#include "tests/cuda_host/layer/block.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>

#ifdef CUDA_HOST_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_host {
namespace {

constexpr size_t kSharedBytes = 96 << 10;  // statistics count float64 values in 34 KB
constexpr size_t kGap = 64;
constexpr unsigned char kNaN = 0xff;  // NaN in every type: no kernel may rely on zeros

// Never destroyed: blocks of memory are reused until the program's end.
auto& free_memory = *new std::vector<char*>;
auto& left_memory = *new std::vector<char*>;

#ifdef CUDA_HOST_ASAN
void poison(void* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
void unpoison(void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
void poison(void*, size_t) {}
void unpoison(void*, size_t) {}
#endif

std::string text_of(Place place) { return place.file + (":" + std::to_string(place.line)); }

}  // namespace

SharedMemory::SharedMemory() : used_(kGap) {
  if (free_memory.empty()) {
    memory_ = static_cast<char*>(std::aligned_alloc(kGap, kSharedBytes));
    if (memory_ == nullptr) throw std::bad_alloc();
  } else {
    memory_ = free_memory.back();
    free_memory.pop_back();
  }
  unpoison(memory_, kSharedBytes);
  std::memset(memory_, kNaN, kSharedBytes);
  poison(memory_, kSharedBytes);
}

SharedMemory::~SharedMemory() {
  left_memory.push_back(memory_);
#ifndef CUDA_HOST_TSAN
  recycle();
#endif
}

void SharedMemory::recycle() {
  free_memory.insert(free_memory.end(), left_memory.begin(), left_memory.end());
  left_memory.clear();
}

void* SharedMemory::find_or_add(const void* key, size_t bytes) {
  for (unsigned i = 0; i < count_; ++i) {
    if (arrays_[i].key == key) return arrays_[i].memory;
  }
  const size_t taken = (bytes + kGap - 1) / kGap * kGap + kGap;
  if (count_ == kArrays || used_ + taken > kSharedBytes) return nullptr;
  void* const memory = memory_ + used_;
  used_ += taken;
  arrays_[count_++] = {key, memory};
  unpoison(memory, bytes);
  return memory;
}

Block::Block(uint3 at, unsigned size, Fiber::Entry entry) : index(at), threads(size), warps((size + kWarp - 1) / kWarp) {
  Fiber::before_starts();
  for (unsigned i = 0; i < size; ++i) {
    threads[i].block = this;
    threads[i].number = i;
    threads[i].fiber.start(entry);
    ready.push_back(i);
  }
}

Block::~Block() {
  for (Thread& thread : threads) thread.fiber.stop();
}

void Block::wake(unsigned number) {
  threads[number].state = State::ready;
  ready.push_back(number);
}

void Block::after_turn(Thread& thread) {
  switch (thread.state) {
    case State::ready:
      return ready.push_back(thread.number);
    case State::done:
      ++done;
      return;
    case State::at_barrier:
      return after_barrier(thread);
    case State::in_shuffle:
      return after_shuffle(thread);
    case State::failed:
      throw_device_error(thread.failure + (" in " + text_of(thread.place)), *this);
  }
}

void Block::after_barrier(const Thread& thread) {
  for (const Thread& other : threads) {
    if (other.state == State::at_barrier && (other.place.line != thread.place.line || other.place.file != thread.place.file)) {
      throw_device_error("threads of a block wait at different barriers", *this);
    }
  }
  if (++waiting < threads.size()) return;
  waiting = 0;
  ++phase;
  for (unsigned i = 0; i < threads.size(); ++i) wake(i);
}

// The lanes that the mask names wait for each other.
void Block::after_shuffle(const Thread& thread) {
  const unsigned first = thread.number / kWarp * kWarp, mask = thread.shuffle_mask;
  const auto is_there = [&](unsigned lane) {
    if (first + lane >= threads.size()) return false;
    const Thread& other = threads[first + lane];
    return other.state == State::in_shuffle && other.shuffle_mask == mask && other.shuffles == thread.shuffles;
  };
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) != 0 && !is_there(lane)) return;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) != 0) wake(first + lane);
  }
}

void Block::report_deadlock() const { throw_device_error("no thread of a block can go on", *this); }

// Lists the places that threads wait at, with the first thread of each.
void throw_device_error(const std::string& what, const Block& block) {
  std::ostringstream text;
  text << what << ", in block " << block.index.x << ',' << block.index.y;
  static constexpr const char* kStates[] = {"runs since", "waits at the barrier in", "waits at the shuffle in", "has ended",
                                            "failed"};
  std::string last;
  for (const Thread& thread : block.threads) {
    const bool waits = thread.state == State::at_barrier || thread.state == State::in_shuffle;
    const std::string state = kStates[static_cast<int>(thread.state)] + (waits ? " " + text_of(thread.place) : std::string());
    if (state != last && thread.state != State::ready) text << "\n  from thread " << thread.number << " on: " << state;
    last = state;
  }
  throw DeviceError(text.str());
}

}  // namespace cuda_host
