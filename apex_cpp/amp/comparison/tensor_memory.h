#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace apex::amp::detail {

/// Counts what LibTorch's allocators hand out and take back while a `Counting` lives: on its thread and in the backward passes
/// that it starts. Only blocks that were counted when they were handed out count when they come back. What oneDNN, cuDNN and
/// the like take from the system by themselves does not come by here.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  /// On one kind of device, or on all.
  explicit TensorMemory(std::optional<c10::DeviceType> of = std::nullopt) : of_(of) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return counts_; }

  /// From now on nothing is counted, and allocations cost no more than without this.
  void stop() { counts_ = false; }

  /// Bytes that are in use.
  int64_t live() const;
  /// The most that were in use at once, since this was asked for the last time.
  int64_t take_peak();

 private:
  const std::optional<c10::DeviceType> of_;
  std::atomic<bool> counts_{true};
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> blocks_;
  int64_t live_ = 0, peak_ = 0;
};

class Counting {
 public:
  /// Allocators report to whatever stands in the profiler's place.
  explicit Counting(std::shared_ptr<TensorMemory> memory) : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(memory)) {}

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace apex::amp::detail
