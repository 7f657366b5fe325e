#include "memory_watch.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>

namespace comparison {

// Allocators report to whatever stands in the profiler's place.
class MemoryWatch::Counter : public c10::MemoryReportingInfoBase {
 public:
  explicit Counter(c10::Device device) : device_(device) {}

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != device_.type()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }

  bool memoryProfilingEnabled() const override { return true; }

  int64_t now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }
  int64_t peak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peak_;
  }

 private:
  c10::Device device_;
  std::mutex mutex_;
  int64_t now_ = 0, peak_ = 0;
};

MemoryWatch::MemoryWatch(c10::Device device) : counter_(std::make_shared<Counter>(device)) {}
MemoryWatch::~MemoryWatch() = default;

void MemoryWatch::begin() { reporting_.emplace(c10::DebugInfoKind::PROFILER_STATE, counter_); }

void MemoryWatch::mark_forward() {
  if (reporting_) after_forward_ = counter_->now();
}

void MemoryWatch::end() { reporting_.reset(); }

int64_t MemoryWatch::peak() const { return counter_->peak(); }

}  // namespace comparison
