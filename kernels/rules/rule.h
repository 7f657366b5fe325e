#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/rules/arithmetic.h"

// A rule says how the values that several tensors hold at one index are updated. It is a struct of plain coefficients with
//   using Real       float or double: what it computes in, and the type of its coefficients
//   kUses[]          one entry per value, in the order of the tensor lists: what becomes of it
//   kSums            how many running sums come behind the values
//   Fold             with sums: how those of two parts are joined, Sum or Largest
//   SumReal          with sums that are not of type Real: their type, double
//   operator()       the formula, on values of type V: Real itself, or a vector of them. Coefficients convert to V.
// A rule depends on nothing else, so every driver gives the same bits.
namespace apex::kernels::rules {

enum class Use { read, write, update };

template <class Rule>
constexpr size_t kValues = sizeof(Rule::kUses) / sizeof(Use);

constexpr bool is_read(Use use) { return use != Use::write; }
constexpr bool is_written(Use use) { return use != Use::read; }

template <class Rule, class = void>
struct SumRealOf {
  using type = typename Rule::Real;
};
template <class Rule>
struct SumRealOf<Rule, std::void_t<typename Rule::SumReal>> {
  using type = typename Rule::SumReal;
};
template <class Rule>
using SumReal = typename SumRealOf<Rule>::type;

struct Sum {
  template <class Value>
  HD static Value join(Value a, Value b) {
    return add(a, b);
  }
};

struct Largest {
  template <class Value>
  HD static Value join(Value a, Value b) {
    return larger_magnitude(a, b);
  }
};

// A sum that stays 0 until a value is not finite: Inf - Inf and NaN - NaN are NaN.
template <class V>
HD inline void note_nonfinite(V& residue, V value) {
  residue = add(residue, subtract(value, value));
}

}  // namespace apex::kernels::rules
