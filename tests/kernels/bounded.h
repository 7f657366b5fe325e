#pragma once

#include <algorithm>
#include <cmath>

namespace kernels_test {

// The exact result of a formula, and a bound on the error of float32 arithmetic: a running error analysis. Every operation
// propagates the errors of its operands and adds one rounding of at most 2^-24 of the result (or 2^-150, half the step between
// subnormal values). A division by x is counted as a product with 1/x, plus the rounding of that coefficient, so the bound
// holds for both.
struct Bounded {
  double value = 0;
  double error = 0;

  Bounded() = default;
  Bounded(double exact) : value(exact) {}
  Bounded(double exact, double bound) : value(exact), error(bound) {}

  // A coefficient that must be rounded to float32.
  static Bounded coefficient(double exact) { return rounded(exact, 0); }

  static Bounded rounded(double value, double error) {
    constexpr double kSlack = 1.01;  // for products of errors
    return {value, kSlack * (error + 0x1p-24 * (std::abs(value) + error)) + 0x1p-150};
  }
};

inline Bounded operator+(Bounded a, Bounded b) { return Bounded::rounded(a.value + b.value, a.error + b.error); }
inline Bounded operator-(Bounded a, Bounded b) { return Bounded::rounded(a.value - b.value, a.error + b.error); }

inline Bounded operator*(Bounded a, Bounded b) {
  return Bounded::rounded(a.value * b.value, std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
}

inline Bounded operator/(Bounded a, Bounded b) {
  const double quotient = a.value / b.value;
  const double smallest = std::max(std::abs(b.value) - b.error, 0.0);
  return Bounded::rounded(quotient, (a.error + std::abs(quotient) * b.error) / smallest);
}

inline Bounded sqrt(Bounded a) {
  const double root = std::sqrt(a.value);
  const double lowest = std::sqrt(std::max(a.value - a.error, 0.0));
  return Bounded::rounded(root, a.error == 0 ? 0 : a.error / (root + lowest));
}

// 1, -1 or 0. If the bound on the operand's error allows several, the sign of `rounded`: the operand as float32 arithmetic
// gives it.
inline Bounded sign(Bounded a, float rounded) {
  const double decides = std::abs(a.value) > a.error ? a.value : rounded;
  return decides > 0 ? 1.0 : decides < 0 ? -1.0 : 0.0;
}

}  // namespace kernels_test
