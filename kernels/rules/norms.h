#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// An L2 norm, from a sum of squares. As in Apex's kernels the sum is rounded to float32 first, unless it overflows float32.
HD inline float root_of_sum(double sum) {
  const float rounded = static_cast<float>(sum);
  return subtract(rounded, rounded) == 0 ? square_root(rounded) : static_cast<float>(square_root(sum));
}

// sum += (in * factor)^2, with the square rounded to Math.
template <class Math>
struct SumOfSquares {
  using Real = Math;
  using SumReal = double;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read};
  static constexpr size_t kSums = 1;

  Math factor;

  template <class V, class S>
  HD void operator()(V in, S& sum) const {
    const V value = multiply(in, V(factor));
    sum = add(sum, widen(multiply(value, value)));
  }
};

// The sums of squares of two lists in one pass.
struct PairOfSquares {
  using Real = float;
  using SumReal = double;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read};
  static constexpr size_t kSums = 2;

  template <class V, class S>
  HD void operator()(V first, V second, S& first_sum, S& second_sum) const {
    first_sum = add(first_sum, widen(multiply(first, first)));
    second_sum = add(second_sum, widen(multiply(second, second)));
  }
};

// largest = max(largest, |in|); NaN if one of them is NaN.
template <class Math>
struct MaxMagnitude {
  using Real = Math;
  using Fold = Largest;
  static constexpr Use kUses[] = {Use::read};
  static constexpr size_t kSums = 1;

  template <class V>
  HD void operator()(V in, V& largest) const {
    largest = larger_magnitude(largest, in);
  }
};

}  // namespace apex::kernels::rules
