#include <apex_cpp/amp/comparison/tensor_memory.h>

#include <algorithm>

namespace apex::amp::detail {

void TensorMemory::reportMemoryUsage(void* block, int64_t bytes, size_t /*total_allocated*/, size_t /*total_reserved*/,
                                     c10::Device device) {
  if (of_ && device.type() != *of_) return;
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

int64_t TensorMemory::live() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

int64_t TensorMemory::take_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(peak_, live_);
}

}  // namespace apex::amp::detail
