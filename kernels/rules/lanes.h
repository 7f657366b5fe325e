#pragma once

#include "kernels/rules/rule.h"

// The order in which sums are taken, the same for every native driver:
// 1. Within a chunk, element i is added to lane i % kLanes, in order, in the rule's arithmetic; then the lanes are folded.
// 2. Within a tensor, chunk i is added to lane i % kLanes of a float64 row, folded again.
// 3. Over the tensors of a list, sums are added like those of chunks.
// A lane of a full chunk of 65,536 elements takes 128 additions and the fold 9, so the float32 part of a norm is within
// (128 + 9 + 1) / 2 units of 2^-24 (4.2e-6) of the exact value, whatever the number of elements.
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

}  // namespace apex::kernels::rules
