#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace comparison {

/// Counts the bytes of tensors on one device that come and go between `begin` and `end`, as LibTorch's allocators report them
/// for the calling thread and for its backward passes. What was there before does not count, nor do buffers of oneDNN and cuDNN
/// that are no tensors.
class MemoryWatch {
 public:
  explicit MemoryWatch(c10::Device device);
  ~MemoryWatch();

  void begin();
  /// Takes down how much there is after the forward pass; nothing unless counting.
  void mark_forward();
  void end();

  /// Bytes that the forward pass left: what autograd keeps for the backward pass, 16-bit copies of weights among it.
  int64_t after_forward() const { return after_forward_; }
  /// The most bytes that there were at a time.
  int64_t peak() const;

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  std::optional<c10::DebugInfoGuard> reporting_;
  int64_t after_forward_ = 0;
};

}  // namespace comparison
