#pragma once

#include <ATen/core/Tensor.h>

namespace comparison {

/// How far a tensor is from the one that it stands for, of the same shape. Computed in float64. Where any value is Inf or NaN,
/// all but the counts are NaN. Beside an x of zeros alone, what is by its norm is NaN.
struct Difference {
  double relative_error = 0;  // |x - y| / |x|, by L2 norms
  double sqnr_db = 0;         // 20 log10(|x| / |x - y|); Inf where they are equal
  double cosine = 1;          // 0 where one of the two is zeros alone
  int64_t inf = 0, nan = 0;
};

/// `y` beside the reference `x`. Waits for the device.
Difference difference(const at::Tensor& x, const at::Tensor& y);

}  // namespace comparison
