#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace apex::amp::detail {

/// Values of a 16-bit tensor, evenly spaced, to tell later whether it has others: what a write through `tensor.data()` leaves,
/// which has no version. Holds a hash of them; none of a tensor that is not on a CPU, where looking would wait for the device.
class ValueSample {
 public:
  ValueSample() = default;
  explicit ValueSample(const at::Tensor& tensor) : hash_(hash_of(tensor)) {}

  bool still(const at::Tensor& tensor) const { return hash_ == hash_of(tensor); }

 private:
  static uint64_t hash_of(const at::Tensor& tensor);

  uint64_t hash_ = 0;
};

}  // namespace apex::amp::detail
