#include "kernels/rules/norms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/cpu/driver.h"
#include "kernels/cpu/row_sums.h"

namespace apex::kernels::cpu {
namespace {

template <class Rule>
at::Tensor sums_by_index(const plan::Group& group, size_t count, const Rule& rule) {
  const at::Tensor result = at::zeros({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kDouble));
  double* const by_index = result.mutable_data_ptr<double>();
  const std::vector<double> rows = row_sums<Rule>(group, run_pass(group, rule));
  for (size_t row = 0; row < rows.size(); ++row) by_index[group.rows[row].index] = rows[row];
  return result;
}

}  // namespace

at::Tensor sums_of_squares(const plan::Group& group, size_t count, double factor) {
  return group.has_double() ? sums_by_index(group, count, rules::SumOfSquares<double>{factor})
                            : sums_by_index(group, count, rules::SumOfSquares<float>{static_cast<float>(factor)});
}

at::Tensor max_magnitudes(const plan::Group& group, size_t count) {
  return group.has_double() ? sums_by_index(group, count, rules::MaxMagnitude<double>())
                            : sums_by_index(group, count, rules::MaxMagnitude<float>());
}

// Not at::sqrt, which may be off by a bit.
at::Tensor roots_of(const at::Tensor& sums) {
  const at::Tensor roots = at::empty(sums.sizes(), sums.options().dtype(at::kFloat));
  std::transform(sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel(), roots.mutable_data_ptr<float>(),
                 rules::root_of_sum);
  return roots;
}

double ordered_sum(c10::ArrayRef<double> values) {
  return ordered_fold<rules::Sum>(values.size(), [&](size_t i) { return values[i]; });
}

}  // namespace apex::kernels::cpu
