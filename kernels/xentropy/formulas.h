#pragma once

#include <cstdint>

#include "kernels/rules/arithmetic.h"

// Softmax cross entropy of one row of logits x with C classes, for the label y and the smoothing s:
//   lse  = m + log(sum of exp(x_i - m)),   m = the largest x_i
//   loss = (1 - s) (lse - x_y) + s (lse - mean(x))
//   dx_i = dy (exp(x_i - lse) - (1 - s) [i = y] - s / C)
// Exponentials are those of the type Real that x is read as, sums are float64. Values of type V: Real, or a stand-in of it
// whose operations are found beside it. Element i of a row belongs to lane i % kLanes; each lane is added up in order, and the
// lanes are folded by halves.
namespace apex::kernels::xentropy {

using rules::add;
using rules::multiply;
using rules::subtract;

constexpr int kLanes = 128;

// 2^n for what add(n, kToInteger) is, from n = -127, which gives 0, to 127.
constexpr float kToInteger = 0x1.8p23F;
HD inline float power_of_two(float shifted) { return rules::from_bits((rules::to_bits(shifted) + 127u) << 23); }

// `y`, but 0 where x is below `limit`. NaN is not.
HD inline float unless_below(float limit, float x, float y) { return x < limit ? 0.0F : y; }

// exp(x) in float32 for x up to 88: within 2 units of 2^-23 of it, but 0 for x below -87. With n = round(x / log 2)
// and r = x - n log 2, where n times the first part of log 2 is exact, it is 2^n times the first terms of the series of exp(r).
// |r| <= 0.35: the next term is 2^-27.
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

// What the sums of a row are taken for.
struct RowSums {
  double exponentials, logits;
};

HD inline double loss_of(double lse, double logit, double mean, double smoothing) {
  const double loss = lse - logit;
  // A class that is ruled out by -Inf has no part in a mean that nobody asked for.
  return smoothing == 0 ? loss : (1 - smoothing) * loss + smoothing * (lse - mean);
}

// What is taken from the probability: at the label, and elsewhere.
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
