#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>

namespace apex::amp::detail {

/// Where a tensor's values were and which version they had, to tell later whether they are other ones. Host data; writes
/// through `tensor.data()` leave no version, nor do any to inference tensors.
class TensorTrace {
 public:
  TensorTrace() = default;
  explicit TensorTrace(const at::Tensor& tensor);

  /// Whether `tensor` is in the memory of that one, whatever was written to it.
  bool same_memory(const at::Tensor& tensor) const;
  bool still(const at::Tensor& tensor) const;
  /// Whether anybody holds the memory still.
  bool memory_lives() const { return memory_ && !memory_->expired(); }

 private:
  uint32_t version_ = 0;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;  // keeps the address from being used again
};

/// The memory of a tensor; null for an undefined or a sparse one.
c10::StorageImpl* memory_of(const at::Tensor& tensor);

}  // namespace apex::amp::detail
