#pragma once

#include "kernels/rules/arithmetic.h"
#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// Whether vectors are divided sooner by products than by the processor's own division.
bool products_are_quicker();

// A number that many values are divided by. Where the units for vectors divide slowly, their drivers take four products in
// place of a quotient, with the same bits: from a guess that is off by less than a unit in the last place, one step with the
// exact remainder and the rounded reciprocal gives the correctly rounded quotient (P. Markstein, Computation of elementary
// functions on the IBM RISC System/6000 processor, IBM J. Res. Dev. 34, 1990).
struct Divisor {
  // Divisors and dividends of magnitudes in between (and dividends of +0) leave quotients and remainders normal and exact.
  static constexpr float kSmallest = 0x1p-24f, kLargest = 0x1p24f;
  static constexpr float kSmallestDividend = 0x1p-98f, kLargestDividend = 0x1p98f;

  float value;
  float reciprocal, rest;  // both add up to 1 / value; 0 where a division is to be one

  HD Divisor(float divisor) : value(divisor), reciprocal(0), rest(0) {
#ifndef __CUDA_ARCH__  // devices take what divide() is there
    if (products_are_quicker()) take_products();
#endif
  }

  void take_products() {
    if (value < kSmallest || value > kLargest || value != value) return;
    const double exact = 1.0 / static_cast<double>(value);
    reciprocal = static_cast<float>(exact);
    rest = static_cast<float>(exact - static_cast<double>(reciprocal));
  }
};

HD inline float divide(float a, const Divisor& by) { return divide(a, by.value); }
HD inline double divide(double a, const Divisor& by) { return divide(a, static_cast<double>(by.value)); }

// mean / correction, without the division where it would change nothing.
template <class V>
HD V corrected(V mean, const Divisor& correction) {
  return correction.value == 1 ? mean : divide(mean, correction);
}

// Running means of gradients and of their squares, and the step that they give: what Adam and LAMB have in common.
// The corrections undo that both means start at zero; they are 1 without bias correction, and soon with it.
struct Moments {
  float decay, weight;                // of the mean: beta1, and 1 - beta1 or 1
  float square_decay, square_weight;  // of the mean of squares: beta2 and 1 - beta2
  Divisor correction;                 // 1 - beta1^step
  Divisor square_correction;          // 1 - beta2^step
  float eps;

  // (mean / correction) / (sqrt(square / square_correction) + eps), after both took in the gradient.
  template <class V>
  HD V advance(V grad, V& mean, V& square) const {
    mean = add(multiply(V(decay), mean), multiply(V(weight), grad));
    square = add(multiply(V(square_decay), square), multiply(multiply(V(square_weight), grad), grad));
    const V root = square_root(corrected(square, square_correction));
    return divide(corrected(mean, correction), add(root, V(eps)));
  }
};

}  // namespace apex::kernels::rules
