#pragma once

#include "kernels/rules/arithmetic.h"

#include <algorithm>
#include <cstdint>

// Layer and RMS normalization of one row, as formulas on values of type V: float, double, or a substitute that provides the
// same operations. With x_hat = (x - mean) * inv_std, or x * inv_std for RMS:
//   forward    y = x_hat * weight + bias            (RMS: no bias)
//   backward   g = dy * weight,   dx = (g - mean(g) - x_hat * mean(g * x_hat)) * inv_std    (RMS: no mean(g))
// Each operation is rounded once. Products and sums stay separate, because a fused multiply-add, which not every CPU loop has,
// would give other bits.
namespace apex::kernels::normalization {

using rules::add;
using rules::divide;
using rules::multiply;
using rules::square_root;
using rules::subtract;

// Layer normalization.
struct Layer {
  static constexpr bool kCentered = true;
};

// RMS normalization: no mean and no bias.
struct Rms {
  static constexpr bool kCentered = false;
};

// The statistics of a row. `mean` is 0 for RMS.
template <class Real>
struct RowStatistics {
  Real mean, inv_std;
};

// mean(g), 0 for RMS, and mean(g * x_hat).
template <class Real>
struct GradMeans {
  Real plain, with_x_hat;
};

HD inline float not_negative(float value) { return value < 0 ? 0 : value; }
HD inline double not_negative(double value) { return value < 0 ? 0 : value; }

template <class V>
HD inline V inverse_std(V sum_of_squares, V size, V eps) {
  return divide(V{1}, square_root(add(divide(sum_of_squares, size), eps)));
}

// The mean of a row and the sum of its squared deviations, from deviations about a rounded mean. The rounding shifts every
// deviation by the same amount, and thereby their mean; for a row of equal values this shift is the only deviation.
template <class V>
struct Centre {
  V mean, squares;
};
template <class V>
HD inline Centre<V> centre(V rounded_mean, V deviations, V squares, V size) {
  const V off = divide(deviations, size);
  return {add(rounded_mean, off), not_negative(subtract(squares, multiply(deviations, off)))};
}

// NORM-05: the divisor used instead of `weight` to invert the forward pass: at least eps away from 0, with the sign of
// `weight`.
template <class Real>
HD inline Real divisor(Real weight, Real eps) {
  if (weight >= 0) return weight < eps ? eps : weight;
  return weight > -eps ? -eps : weight;
}

template <class Kind, class V>
HD inline V deviation(V x, V mean) {
  if constexpr (Kind::kCentered) {
    return subtract(x, mean);
  } else {
    return x;
  }
}

template <class Kind, class V>
HD inline V normalized(V x, V mean, V inv_std) {
  return multiply(deviation<Kind>(x, mean), inv_std);
}

template <class Kind, class V>
HD inline V output(V x_hat, V weight, V bias) {
  if constexpr (Kind::kCentered) {
    return add(multiply(x_hat, weight), bias);
  } else {
    return multiply(x_hat, weight);
  }
}

// x_hat recovered from the output.
template <class Kind, class V>
HD inline V recovered(V y, V weight_divisor, V bias) {
  if constexpr (Kind::kCentered) {
    return divide(subtract(y, bias), weight_divisor);
  } else {
    return divide(y, weight_divisor);
  }
}

template <class Kind, class V>
HD inline V grad_input(V g, V x_hat, V mean_g, V mean_g_x_hat, V inv_std) {
  return multiply(subtract(deviation<Kind>(g, mean_g), multiply(x_hat, mean_g_x_hat)), inv_std);
}

// The order of sums. It depends on the shape alone, not on the device or the number of threads.
//
// Along a row: segments of kSegment elements belong to slots 0 ... kSlots - 1 in turn. Within a segment, element i belongs to
// lane i % kLanes. The elements of each lane of each slot are added in order; then the lanes of a slot are folded by halves,
// then the slots. On a GPU a slot is two warps whose threads have kPair adjacent lanes each; on a CPU a slot is a handful of
// vector registers.
//
// Over the rows (gradients of weight and bias): rows are cut into blocks of rows_per_block(), and the rows of a block are added
// in order. Block b belongs to lane b % kBlockLanes. The blocks of a lane are added in order; then the lanes are folded by
// halves.

constexpr int kPair = 2;
constexpr int kSlotThreads = 64;
constexpr int kLanes = kPair * kSlotThreads;
constexpr int kStrips = 8;  // passes over all lanes per segment
constexpr int kSegment = kLanes * kStrips;
constexpr int kSlots = 8;
constexpr int kBlockLanes = 16;

constexpr int64_t kMaxBlocks = 256;

// Few enough blocks that their sums are a small part of the memory traffic, and enough to keep a device busy.
inline int64_t rows_per_block(int64_t rows, int64_t columns) {
  constexpr int64_t kMinRows = 8;
  constexpr int64_t kMinElements = 32768;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return std::max({ceil_div(rows, kMaxBlocks), ceil_div(kMinElements, std::max<int64_t>(columns, 1)), kMinRows});
}

// Folds `values` by halves into one.
template <int kCount, class V>
HD inline V fold(const V* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    V halves[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) halves[i] = add(values[i], values[i + kCount / 2]);
    return fold<kCount / 2>(halves);
  }
}

}  // namespace apex::kernels::normalization
