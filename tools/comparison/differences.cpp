#include "differences.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

namespace comparison {

Difference difference(const at::Tensor& x, const at::Tensor& y) {
  const auto reference = x.detach().to(at::kDouble).flatten(), other = y.detach().to(at::kDouble).flatten();
  Difference result;
  result.inf = at::isinf(other).sum().item<int64_t>();
  result.nan = at::isnan(other).sum().item<int64_t>();
  if (result.inf + result.nan > 0) {
    result.relative_error = result.sqnr_db = result.cosine = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  const auto norm = reference.norm().item<double>(), norm_of_other = other.norm().item<double>();
  const auto apart = (reference - other).norm().item<double>();
  if (apart == 0) {
    result.sqnr_db = std::numeric_limits<double>::infinity();
    return result;
  }
  if (norm == 0) {
    result.relative_error = result.sqnr_db = std::numeric_limits<double>::quiet_NaN();
    result.cosine = 0;
    return result;
  }
  result.relative_error = apart / norm;
  result.sqnr_db = 20 * std::log10(norm / apart);
  result.cosine = norm_of_other == 0 ? 0 : reference.dot(other).item<double>() / (norm * norm_of_other);
  return result;
}

}  // namespace comparison
