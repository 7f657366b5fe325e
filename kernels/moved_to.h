#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace apex::kernels {

// The tensor on `device`, as `dtype` if one is given; undefined stays undefined. The host waits only for a copy to a CPU, since
// a program may read a CPU tensor at once. Work on a GPU is in the order of its streams.
inline at::Tensor moved_to(c10::Device device, const at::Tensor& tensor, std::optional<at::ScalarType> dtype = {}) {
  return tensor.defined() ? tensor.to(device, dtype.value_or(tensor.scalar_type()), /*non_blocking=*/!device.is_cpu()) : tensor;
}

}  // namespace apex::kernels
