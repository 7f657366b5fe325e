#include "tests/oracle/verdict/compare.h"

#include <ATen/Functions.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

namespace oracle {
namespace {

// Float64 sums over a large tensor were taken in a different order: 2^-53 for each of some millions of elements.
constexpr double kSumRounding = 1e-9;

double half_spacing(double value) {
  constexpr int kMantissaBits = 10;
  constexpr int kLowestExponent = -14;
  const double size = std::abs(value);
  const int exponent = size == 0 ? kLowestExponent : std::max(kLowestExponent, std::ilogb(size));
  return std::ldexp(1.0, exponent - kMantissaBits);
}

std::vector<double> as_doubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).contiguous().flatten();
  return std::vector<double>(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

double largest_finite(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double allowed(double expected, double largest, const Tolerance& t) {
  return t.atol + t.rtol * std::abs(expected) + t.of_largest * largest +
         (t.spacings ? t.spacings * half_spacing(expected) : 0.0);
}

// Whether the repair file says that values part here.
bool ignored(const Report& report, const Tolerance& t) {
  return report.ignores_values() && (t.rtol > 0 || t.atol > 0 || t.of_largest > 0 || t.spacings > 0);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double difference(double a, double b) {
  if (same(a, b)) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? INFINITY : d;
}

void compare_values(Report& report, const std::string& what, const std::vector<double>& got,
                    const std::vector<double>& expected, const Tolerance& tolerance) {
  if (ignored(report, tolerance)) return;
  const double largest = largest_finite(expected);
  auto outliers_left =
      std::max(tolerance.least_outliers, static_cast<int64_t>(tolerance.outliers * static_cast<double>(expected.size())));
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = difference(got[i], expected[i]);
    worst = std::max(worst, d);
    if (d == 0 || d <= allowed(expected[i], largest, tolerance)) continue;
    if (outliers_left > 0 && d <= tolerance.outlier_atol) {
      --outliers_left;
      continue;
    }
    report.fail(what + ", element " + std::to_string(i),
                number_text(expected[i]) + " within " + number_text(allowed(expected[i], largest, tolerance)),
                number_text(got[i]));
    break;  // one line per tensor
  }
  report.deviation(worst, worst == 0);
}

// The three sums of a sampled tensor, each within what its elements' tolerances add up to.
void compare_stats(Report& report, const std::string& what, const std::vector<double>& got, const at::Tensor& stats,
                   const Tolerance& tolerance) {
  if (ignored(report, tolerance)) return;
  double sum = 0, squares = 0, absolute = 0, slack = 0, square_slack = 0;
  const double largest = largest_finite(got);
  for (double value : got) {
    const double a = allowed(value, largest, tolerance);
    sum += value;
    squares += value * value;
    absolute += std::abs(value);
    slack += a;
    square_slack += a * (2 * std::abs(value) + a);
  }
  const std::vector<double> expected = as_doubles(stats);
  auto check = [&](const char* name, double value, double wanted, double limit) {
    const double d = difference(value, wanted);
    if (d != 0 && !(d <= limit)) report.fail(what + ", " + name, number_text(wanted), number_text(value));
  };
  check("sum", sum, expected.at(0), slack + kSumRounding * absolute);
  check("sum of squares", squares, expected.at(1), square_slack + kSumRounding * squares);
  check("largest magnitude", largest, expected.at(2), allowed(largest, largest, tolerance));
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

std::string bool_text(bool value) { return value ? "true" : "false"; }

void compare_tensor(Report& report, const std::string& what, const at::Tensor& got, const ExpectedTensor& expected,
                    const Tolerance& tolerance) {
  if (!got.defined()) return report.fail(what, "a tensor", "none");
  if (got.scalar_type() != expected.values.scalar_type()) {
    return report.fail(what + ", dtype", dtype_name(expected.values.scalar_type()), dtype_name(got.scalar_type()));
  }
  if (expected.index.defined()) {
    const at::Tensor sample = got.detach().flatten().index_select(0, expected.index);
    compare_values(report, what + " (sample)", as_doubles(sample), as_doubles(expected.values), tolerance);
    if (expected.stats.defined()) compare_stats(report, what, as_doubles(got), expected.stats, tolerance);
    return;
  }
  if (got.sizes() != expected.values.sizes()) {
    return report.fail(what + ", shape", shape_text(expected.values.sizes()), shape_text(got.sizes()));
  }
  compare_values(report, what, as_doubles(got), as_doubles(expected.values), tolerance);
}

void compare_number(Report& report, const std::string& what, double got, double expected, const Tolerance& tolerance) {
  compare_values(report, what, {got}, {expected}, tolerance);
}

void compare_text(Report& report, const std::string& what, const std::string& got, const std::string& expected) {
  report.check(got == expected, what, expected, got);
}

void check_all_compared(Report& report, const CaseFile& case_file) {
  for (const auto& name : case_file.unread_results()) report.fail(name, "to be compared with something", "nothing asks for it");
}

}  // namespace oracle
