#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include <apex_cpp/amp/comparison/measurement.h>

namespace comparison {

/// Counts the bytes of tensors on one kind of device that come and go between `begin` and `end`, in the calling thread and in
/// its backward passes. What was there before does not count, nor do buffers of oneDNN and cuDNN that are no tensors.
class MemoryWatch {
 public:
  explicit MemoryWatch(c10::Device device) : device_(device) {}

  /// Counts from nothing, each time.
  void begin() {
    memory_ = std::make_shared<apex::amp::detail::TensorMemory>(device_.type());
    counting_.emplace(memory_);
  }
  /// Takes down how much there is after the forward pass; nothing unless counting.
  void mark_forward() {
    if (counting_) after_forward_ = memory_->live();
  }
  void end() {
    counting_.reset();
    peak_ = memory_->take_peak();
  }

  /// Bytes that the forward pass left: what autograd keeps for the backward pass, 16-bit copies of weights among it.
  int64_t after_forward() const { return after_forward_; }
  /// The most bytes that there were at a time.
  int64_t peak() const { return peak_; }

 private:
  c10::Device device_;
  std::shared_ptr<apex::amp::detail::TensorMemory> memory_;
  std::optional<apex::amp::detail::Counting> counting_;
  int64_t after_forward_ = 0, peak_ = 0;
};

}  // namespace comparison
