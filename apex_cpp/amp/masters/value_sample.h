#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace apex::amp::detail {

/// Values of a 16-bit tensor, evenly spaced, to tell later whether it has others: what a write through `tensor.data()` leaves,
/// which has no version. Holds none of a tensor that is not on a CPU, where looking would wait for the device.
class ValueSample {
 public:
  ValueSample() = default;
  explicit ValueSample(const at::Tensor& tensor) : values_(taken_from(tensor)) {}

  bool still(const at::Tensor& tensor) const { return values_ == taken_from(tensor); }

 private:
  static std::vector<uint16_t> taken_from(const at::Tensor& tensor);

  std::vector<uint16_t> values_;
};

}  // namespace apex::amp::detail
