#pragma once

#include "kernels/layers/cpu/layer_kernels.h"
#include "kernels/layers/cpu/vectors.h"

namespace apex::kernels::layers {
namespace {

// So many rows have sums of their own, which are joined at the end: additions then need not wait for each other.
constexpr int64_t kUnrolled = 4;

struct TwoSums {
  Floats first, second;
};

// For each of `period` places, what add_to(sums, place of the element, place in the period) adds up over the rows.
template <class AddTo>
[[gnu::always_inline]] inline void sum_columns(Rows rows, float* first, float* second, const AddTo& add_to) {
  for (int64_t column = 0; column < rows.period; column += kLanes) {
    TwoSums sums[kUnrolled] = {};
    int64_t at = column;
    for (; at + (kUnrolled - 1) * rows.period < rows.size; at += kUnrolled * rows.period) {
      for (int64_t row = 0; row < kUnrolled; ++row) add_to(sums[row], at + row * rows.period, column);
    }
    for (; at < rows.size; at += rows.period) add_to(sums[0], at, column);
    store_values((sums[0].first + sums[1].first) + (sums[2].first + sums[3].first), first + column);
    store_values((sums[0].second + sums[1].second) + (sums[2].second + sums[3].second), second + column);
  }
}

// For each vector, run(place of its elements, place in the period).
template <class Run>
[[gnu::always_inline]] inline void for_all(Rows rows, const Run& run) {
  for (int64_t row = 0; row < rows.size; row += rows.period) {
    const int64_t size = rows.size - row < rows.period ? rows.size - row : rows.period;
    for (int64_t column = 0; column < size; column += kLanes) run(row + column, column);
  }
}

void deviations(Rows rows, const uint16_t* x, const float* center, float* sums, float* squares) {
  sum_columns(rows, sums, squares, [=](TwoSums& total, int64_t at, int64_t column) {
    const Floats deviation = load_bfloat16(x + at) - load_values(center + column);
    total.first += deviation;
    total.second += deviation * deviation;
  });
}

void normalize(Rows rows, const uint16_t* x, const float* mean, const float* factor, const float* offset, uint16_t* y) {
  for_all(rows, [=](int64_t at, int64_t column) {
    const Floats deviation = load_bfloat16(x + at) - load_values(mean + column);
    store_bfloat16(deviation * load_values(factor + column) + load_values(offset + column), y + at);
  });
}

void grad_sums(Rows rows, const uint16_t* grad_y, const uint16_t* x, const float* mean, float* sums, float* products) {
  sum_columns(rows, sums, products, [=](TwoSums& total, int64_t at, int64_t column) {
    const Floats grad = load_bfloat16(grad_y + at);
    total.first += grad;
    total.second += grad * (load_bfloat16(x + at) - load_values(mean + column));
  });
}

void grad_input(Rows rows, const uint16_t* grad_y, const uint16_t* x, const float* mean, const float* factor,
                const float* slope, const float* offset, uint16_t* grad_x) {
  for_all(rows, [=](int64_t at, int64_t column) {
    const Floats deviation = load_bfloat16(x + at) - load_values(mean + column);
    const Floats direct = load_bfloat16(grad_y + at) * load_values(factor + column);
    store_bfloat16(direct + (deviation * load_values(slope + column) + load_values(offset + column)), grad_x + at);
  });
}

}  // namespace
}  // namespace apex::kernels::layers
