#pragma once

#include "kernels/rules/arithmetic.h"

#include <cstddef>
#include <type_traits>

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

// The order in which sums are taken, the same for every native driver:
// 1. Within a chunk, element i is added to lane i % kLanes, in order, in the rule's SumReal; then the lanes are folded.
//    The sum of a chunk of float32 values is rounded to float32, as Apex's kernels leave it.
// 2. Within a tensor, chunk i is added to lane i % kLanes of a float64 row, folded again.
// 3. Over the tensors of a list, sums are added like those of chunks.
// Squares are rounded to float32 and summed in float64. So a norm is within 2.5 units of 2^-24 of the exact value, whatever the
// number of elements: the roundings of squares, chunks and the whole sum count half each under the root, the root's own whole.
namespace apex::kernels::rules {

constexpr int kLanes = 512;

// How many lanes a fold touches if the first `used` were added to: a power of two.
HD inline int folded_lanes(int used) {
  int count = 1;
  while (count < used) count *= 2;
  return count;
}

// Halves the row of lanes until one is left, and overwrites it. Only the first `used` lanes were added to. Those behind them
// count as 0, which changes no sum of squares and no magnitude, and need not hold it beyond folded_lanes(used).
template <class Fold, class Real>
HD inline Real fold_lanes(Real* lanes, int used = kLanes) {
  for (int width = folded_lanes(used) / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = Fold::join(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

// What is kept of a chunk's sum.
template <class Rule>
HD inline double chunk_sum(SumReal<Rule> sum) {
  return static_cast<typename Rule::Real>(sum);
}

}  // namespace apex::kernels::rules
