#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// sum += (in * factor)^2
template <class Math>
struct SumOfSquares {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read};
  static constexpr size_t kSums = 1;

  Math factor;

  template <class V>
  HD void operator()(V in, V& sum) const {
    const V value = multiply(in, V(factor));
    sum = add(sum, multiply(value, value));
  }
};

// largest = max(largest, |in|), NaN once one is
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
