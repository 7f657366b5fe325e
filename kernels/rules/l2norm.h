#pragma once

#include "kernels/rules/arithmetic.h"

// The order of summation of an L2 norm, the same for every native driver:
// 1. Within a chunk, element i adds its square to lane i % kLanes, in order, in float32 (float64 for float64 tensors); then
//    the lanes are folded.
// 2. Within a tensor, chunk i adds its sum to lane i % kLanes of a float64 row, folded again.
// 3. Over the tensors of a list, sums are added like those of chunks.
// A lane of a full chunk of 65,536 elements takes 128 additions and the fold 9, so the float32 part of a norm is within
// (128 + 9 + 1) / 2 units of 2^-24 (4.2e-6) of the exact value, whatever the number of elements.
namespace apex::kernels::rules {

constexpr int kLanes = 512;

template <class Math>
HD inline Math add_square(Math sum, Math value) {
  return add(sum, multiply(value, value));
}

// Halves the row of lanes until one is left. `lanes` is overwritten.
template <class Math>
HD inline Math fold_lanes(Math* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = add(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

}  // namespace apex::kernels::rules
