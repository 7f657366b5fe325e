#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace apex::kernels {

// A 16-bit tensor's elements, as bits.
inline const uint16_t* elements(const at::Tensor& tensor) { return static_cast<const uint16_t*>(tensor.const_data_ptr()); }
inline uint16_t* written_elements(const at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.mutable_data_ptr()); }

}  // namespace apex::kernels
