#pragma once

#include "kernels/rules/arithmetic.h"

#include <algorithm>
#include <cstdint>

// Layer and RMS normalisation of one row, as formulas on values of type V: float or double, or a stand-in of theirs whose
// operations are found beside it. With x_hat = (x - mean) * inv_std, or x * inv_std for RMS:
//   forward    y = x_hat * weight + bias            (RMS: no bias)
//   backward   g = dy * weight,   dx = (g - mean(g) - x_hat * mean(g * x_hat)) * inv_std    (RMS: no mean(g))
// Each operation is rounded once, products and sums apart, so that host and device give the same bits without fused
// multiply-adds, which plain loops do not have everywhere.
namespace apex::kernels::normalization {

using rules::add;
using rules::divide;
using rules::multiply;
using rules::square_root;
using rules::subtract;

// Layer normalisation.
struct Layer {
  static constexpr bool kCentered = true;
};

// RMS normalisation: no mean is taken away, and there is no bias.
struct Rms {
  static constexpr bool kCentered = false;
};

// What is known about a row. `mean` is 0 for RMS.
template <class Real>
struct RowStatistics {
  Real mean, inv_std;
};

// mean(g), which is 0 for RMS, and mean(g * x_hat).
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

// The mean of a row, and the sum of squares of its deviations, by the deviations from a mean that was rounded: all deviations
// are off by that rounding, and so is their own mean, which for a row of equal values is all there is.
template <class V>
struct Centre {
  V mean, squares;
};
template <class V>
HD inline Centre<V> centre(V rounded_mean, V deviations, V squares, V size) {
  const V off = divide(deviations, size);
  return {add(rounded_mean, off), not_negative(subtract(squares, multiply(deviations, off)))};
}

// NORM-05: what stands in for `weight` where the forward pass is undone: not closer to 0 than eps, with its sign.
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

// x_hat from the output.
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

}  // namespace apex::kernels::normalization

// The order in which sums are taken: a matter of the shape alone, whatever computes them.
//
// Along a row: segments of kSegment elements belong to slots 0 ... kSlots - 1 in turn, and within a segment element i belongs
// to lane i % kLanes. Each lane of each slot is added up in order, the lanes of a slot are folded by halves, then the slots.
// That is a warp for every slot, with kQuad neighbouring lanes a thread, and on a CPU a handful of vector registers.
//
// Over the rows (gradients of weight and bias): rows are cut into blocks of rows_per_block(). Within a block they are added in
// order. Block b belongs to lane b % kBlockLanes; lanes are added up in order and folded by halves.
namespace apex::kernels::normalization {

constexpr int kQuad = 4;
constexpr int kWarp = 32;
constexpr int kLanes = kQuad * kWarp;
constexpr int kStrips = 8;  // rounds of all lanes in a segment
constexpr int kSegment = kLanes * kStrips;
constexpr int kSlots = 8;
constexpr int kBlockLanes = 16;

constexpr int64_t kMaxBlocks = 256;

// Few enough blocks for their sums to be a small part of what is moved, and enough of them to keep a device busy.
inline int64_t rows_per_block(int64_t rows, int64_t columns) {
  constexpr int64_t kMinRows = 8;
  constexpr int64_t kMinElements = 32768;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return std::max({ceil_div(rows, kMaxBlocks), ceil_div(kMinElements, std::max<int64_t>(columns, 1)), kMinRows});
}

// Folds `values` by halves until one is left.
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
