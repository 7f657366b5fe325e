#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace apex::amp::detail {

/// How well a tensor agrees with what it should be.
struct Agreement {
  double sqnr = 0;  ///< 10 log10(sum x^2 / sum (x - y)^2), over elements that are finite in both; +Inf where x or x - y is 0
  int64_t nonfinite = 0;  ///< elements of y that are Inf or NaN where x is finite
  double lost = 0;        ///< of the elements of x that are not 0, the share that is 0 in y
};

/// Of `y` with `x`. In float64 on the host; waits for the device. Tensors of different sizes agree: they cannot be
/// compared.
Agreement agreement(const at::Tensor& x, const at::Tensor& y);

}  // namespace apex::amp::detail
