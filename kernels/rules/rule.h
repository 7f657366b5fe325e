#pragma once

#include "kernels/rules/arithmetic.h"

#include <cstddef>
#include <type_traits>

// A rule is the formula that updates the elements of several tensors at one index. It is a struct of plain coefficients with
//   using Real       float or double: the type of its arithmetic and coefficients
//   kUses[]          one entry per value, in the order of the tensor lists: whether the rule reads, writes or updates it,
//                    or does none of these (another rule over the same lists does)
//   kSums            the number of running sums, which follow the values in the arguments
//   Fold             if there are sums: how the sums of two parts are joined, Sum or Largest
//   kDivides         true if the formula divides values, or takes their roots
//   SumReal          if the sums are not of type Real: their type, double
//   kMean, kSquare   if there are: the positions of values that are running means, of gradients and of their squares, and which
//                    can be stored in 8 bits (quantized.h)
//   kParamStorage    how the second value, a parameter, may be stored, unless it follows from its use
//   operator()       the formula, on values of type V: Real itself, or a vector of Real. Coefficients convert to V.
// A rule depends on nothing else, so that every driver gives the same bits.
namespace apex::kernels::rules {

enum class Use { none, read, write, update };

template <class Rule>
constexpr size_t kValues = sizeof(Rule::kUses) / sizeof(Use);

constexpr bool is_read(Use use) { return use == Use::read || use == Use::update; }
constexpr bool is_written(Use use) { return use == Use::write || use == Use::update; }

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

// Whether a rule has moments that can be stored in 8 bits.
template <class Rule, class = void>
constexpr bool kHasMoments = false;
template <class Rule>
constexpr bool kHasMoments<Rule, std::void_t<decltype(Rule::kSquare)>> = true;

// How a parameter may be stored: as one value, as a bfloat16 and a remainder (remainder.h), or both ways.
enum class ParamStorage { whole, split, either };

template <class Rule>
constexpr bool kUpdatesParam = kValues<Rule> > 1 && Rule::kUses[kValues<Rule> > 1 ? 1 : 0] == Use::update;

template <class Rule, class = void>
constexpr ParamStorage kParamStorage = kUpdatesParam<Rule> ? ParamStorage::either : ParamStorage::whole;
template <class Rule>
constexpr ParamStorage kParamStorage<Rule, std::void_t<decltype(Rule::kParamStorage)>> = Rule::kParamStorage;

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

// Adds value - value, which is 0 for finite values and NaN for Inf and NaN.
template <class V>
HD inline void note_nonfinite(V& residue, V value) {
  residue = add(residue, subtract(value, value));
}

// The order of all sums, the same in the CPU and the CUDA driver:
// 1. Within a chunk, element i is added to lane i % kLanes, in order, in the rule's SumReal. Then the lanes are folded.
//    As in Apex's kernels, the sum of a chunk of float32 values is rounded to float32.
// 2. Within a tensor, the sum of chunk i is added to lane i % kLanes of a float64 row, which is folded too.
// 3. Over the tensors of a list, the tensors' sums are added like the chunks' sums.
// Squares are rounded to float32 and summed in float64. The relative error of a norm is below 2.5 * 2^-24 for any number of
// elements: the roundings of squares, chunk sums and total count half each, because of the root, and the root's rounding fully.

constexpr int kLanes = 512;

// The number of lanes that a fold reads if only the first `used` hold values: the next power of two.
HD inline int folded_lanes(int used) {
  int count = 1;
  while (count < used) count *= 2;
  return count;
}

// Folds the row of lanes in halves, in place, and returns the result. Only the first `used` lanes hold values. The lanes up to
// folded_lanes(used) must hold 0, which changes neither a sum of squares nor a largest magnitude; later lanes are not read.
template <class Fold, class Real>
HD inline Real fold_lanes(Real* lanes, int used = kLanes) {
  for (int width = folded_lanes(used) / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = Fold::join(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

// The sum of a chunk, rounded to the rule's Real.
template <class Rule>
HD inline double chunk_sum(SumReal<Rule> sum) {
  return static_cast<typename Rule::Real>(sum);
}

}  // namespace apex::kernels::rules
