#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace apex::kernels {

// A 16-bit tensor's elements, as bits.
inline const uint16_t* elements(const at::Tensor& tensor) { return static_cast<const uint16_t*>(tensor.const_data_ptr()); }
inline uint16_t* written_elements(const at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.mutable_data_ptr()); }

// Whether two dense tensors hold their elements in the same order in memory.
inline bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  if (a.sizes() != b.sizes()) return false;
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    // The stride of a dimension of size 1 is never used.
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

}  // namespace apex::kernels
