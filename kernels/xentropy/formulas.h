#pragma once

#include <cstdint>

#include "kernels/rules/arithmetic.h"

// Softmax cross entropy of one row of logits x with C classes, for the label y and the smoothing s:
//   lse  = m + log(sum of exp(x_i - m)),   m = the largest x_i
//   loss = (1 - s) (lse - x_y) + s (lse - mean(x))
//   dx_i = dy (exp(x_i - lse) - (1 - s) [i = y] - s / C)
// Exponentials are computed in Real, the type that x is read as; sums are float64. Values have type V: Real, or a substitute
// that provides the same operations. Element i of a row belongs to lane i % kLanes. The elements of a lane are added in order;
// then the lanes are folded by halves.
namespace apex::kernels::xentropy {

using rules::add;
using rules::multiply;
using rules::subtract;

constexpr int kLanes = 128;

// 2^n from the result of add(n, kToInteger), for n from -127 (gives 0) to 127.
constexpr float kToInteger = 0x1.8p23F;
HD inline float power_of_two(float shifted) { return rules::from_bits((rules::to_bits(shifted) + 127u) << 23); }

// `y`, or 0 if x < limit; `y` if x is NaN.
HD inline float unless_below(float limit, float x, float y) { return x < limit ? 0.0F : y; }

// exp(x) in float32 for x <= 88: relative error at most 2 * 2^-23, but 0 for x < -87. With n = round(x / log 2) and r = x - n
// log 2, the result is 2^n times the first terms of the series of exp(r). n times the first part of log 2 is exact. |r| <=
// 0.35, so the next term is 2^-27.
template <class V>
HD inline V exponential(V x) {
  const V shifted = add(multiply(x, V{0x1.715476p0F}), V{kToInteger});
  const V n = subtract(shifted, V{kToInteger});
  const V r = subtract(subtract(x, multiply(n, V{0x1.63p-1F})), multiply(n, V{-0x1.bd0106p-13F}));
  V sum = V{1.0F / 5040};
  sum = add(multiply(sum, r), V{1.0F / 720});
  sum = add(multiply(sum, r), V{1.0F / 120});
  sum = add(multiply(sum, r), V{1.0F / 24});
  sum = add(multiply(sum, r), V{1.0F / 6});
  sum = add(multiply(sum, r), V{0.5F});
  sum = add(multiply(sum, r), V{1});
  sum = add(multiply(sum, r), V{1});
  return unless_below(V{-87.0F}, x, multiply(sum, power_of_two(shifted)));
}

HD inline double exponential(double x) { return exp(x); }

// The sums over the classes of a row.
struct RowSums {
  double exponentials, logits;
};

HD inline double loss_of(double lse, double logit, double mean, double smoothing) {
  const double loss = lse - logit;
  // Without smoothing the mean is unused: a class masked by -Inf must not make the loss infinite.
  return smoothing == 0 ? loss : (1 - smoothing) * loss + smoothing * (lse - mean);
}

// The target probabilities: of the label, and of every other class.
struct Targets {
  double label, other;
};

HD inline Targets targets_of(double smoothing, int64_t classes) {
  const double other = smoothing / static_cast<double>(classes);
  return {1 - smoothing + other, other};
}

template <class V>
HD inline V grad_of(V grad, V x, V lse, V target) {
  return multiply(grad, subtract(exponential(subtract(x, lse)), target));
}

}  // namespace apex::kernels::xentropy
