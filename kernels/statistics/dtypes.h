#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "kernels/rules/convert.h"

namespace apex::kernels::statistics {

// Calls f with a value of the type that elements of `dtype` are stored as.
template <class F>
void with_dtype(at::ScalarType dtype, const F& f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kHalf:
      return f(rules::Half{});
    case at::kBFloat16:
      return f(rules::BFloat16{});
    default:
      C10_THROW_ERROR(NotImplementedError, c10::str("statistics: no kernels for ", dtype));
  }
}

}  // namespace apex::kernels::statistics
