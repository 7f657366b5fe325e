#include "memory.h"

#include <algorithm>
#include <utility>

namespace bench::train {

void Memory::reportMemoryUsage(void* block, int64_t bytes, size_t /*total_allocated*/, size_t /*total_reserved*/,
                               c10::Device /*device*/) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > 0) {
    blocks_[block] = bytes;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  } else if (const auto found = blocks_.find(block); found != blocks_.end()) {
    live_ -= found->second;
    blocks_.erase(found);
  }
}

int64_t Memory::live() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

int64_t Memory::take_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(peak_, live_);
}

}  // namespace bench::train
