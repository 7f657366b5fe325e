#pragma once

#include "kernels/rules/rule.h"

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
