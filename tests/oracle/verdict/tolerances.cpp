#include "tests/oracle/verdict/tolerances.h"

#include "tests/oracle/verdict/o1_session.h"

namespace oracle {
namespace {

Tolerance relative(double rtol, double atol) {
  Tolerance t;
  t.rtol = rtol;
  t.atol = atol;
  return t;
}

Tolerance half_spacings(int n) {
  Tolerance t;
  t.spacings = n;
  return t;
}

// These come with the reference values, as bounds for other processors than that of the recording.
const Tolerance kFullPrecision = relative(1e-5, 1e-6);
const Tolerance kMixedOutput = relative(1e-2, 2e-3);
constexpr double kMixedParameter = 2e-3;
constexpr double kHalfParameter = 4e-3;
constexpr double kSignShare = 0.01;
constexpr double kOfLargest = 1e-3;
// A gradient is a sum over a batch, and where its terms cancel, its error is relative to them. Eight terms, of two passes over
// four samples, each as large as the largest gradient, differ by 8 * 2^-24 of it in another order: other processors' products
// have one.
constexpr double kOfLargestInFloat32 = 5e-7;

}  // namespace

Tolerances::Tolerances(const std::string& kind, const std::string& opt_level)
    : fused_alone_(kind == "optimizer"),
      full_precision_(opt_level == "O0" || (opt_level.empty() && kind == "train")),
      all_half_(opt_level == "O3") {}

Tolerance Tolerances::output() const { return full_precision_ ? kFullPrecision : kMixedOutput; }

Tolerance Tolerances::scaled_loss(double scale) const {
  Tolerance t = output();
  t.atol *= scale;
  return t;
}

Tolerance Tolerances::parameter(at::ScalarType dtype, double sign_steps) const {
  if (fused_alone_) return dtype == at::kHalf ? half_spacings(2) : relative(1e-5, 1e-6);
  Tolerance t = full_precision_ ? kFullPrecision : relative(0, all_half_ ? kHalfParameter : kMixedParameter);
  if (sign_steps > 0) {
    t.outliers = kSignShare;
    t.outlier_atol = sign_steps;
    // The noise that a sign-like optimizer makes steps of is the kernels' own, and these are others.
    t.least_outliers = computes_in_float32() ? 1 : 0;
  }
  return t;
}

Tolerance Tolerances::resumed_parameter(at::ScalarType dtype, double sign_steps) const {
  Tolerance t = parameter(dtype, sign_steps);
  t.outliers = 1;
  return t;
}

Tolerance Tolerances::gradient() const {
  Tolerance t = full_precision_ ? kFullPrecision : relative(2e-2, 0);
  t.of_largest = full_precision_ ? kOfLargestInFloat32 : kOfLargest;
  return t;
}

Tolerance Tolerances::state(at::ScalarType dtype, double largest) const {
  if (fused_alone_) return dtype == at::kHalf ? half_spacings(2) : relative(2e-5, 0);
  if (full_precision_) return kFullPrecision;
  return relative(2e-2, kOfLargest * largest);
}

Tolerance Tolerances::norm() const {
  if (full_precision_) return kFullPrecision;
  return fused_alone_ ? relative(1e-5, 0) : relative(2e-2, 0);
}

}  // namespace oracle
