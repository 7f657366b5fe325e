#pragma once

#include "kernels/layers/cpu/vectors.h"

namespace apex::kernels::layers {
namespace {

// All ones where the float that the bits are is a NaN.
inline uint16_t if_nan(uint16_t bits, uint16_t infinity) { return static_cast<uint16_t>(-((bits & 0x7fff) > infinity)); }

// -0 stays, as it does in LibTorch's.
void relu(const uint16_t* x, uint16_t* y, int64_t size, uint16_t infinity) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const auto unless_negative = static_cast<uint16_t>(-((static_cast<int16_t>(x[i]) > 0) | (x[i] == 0x8000)));
    y[i] = static_cast<uint16_t>(x[i] & (unless_negative | if_nan(x[i], infinity)));
  }
}

void relu_backward(const uint16_t* grad_y, const uint16_t* x, uint16_t* grad_x, int64_t size, uint16_t infinity) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const auto if_positive = static_cast<uint16_t>(-(static_cast<int16_t>(x[i]) > 0));
    grad_x[i] = static_cast<uint16_t>(grad_y[i] & (if_positive | if_nan(x[i], infinity)));
  }
}

void add(const uint16_t* a, const uint16_t* b, uint16_t* sum, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store_bfloat16(load_bfloat16(a + i) + load_bfloat16(b + i), sum + i);
  if (i == size) return;
  uint16_t last_a[kLanes] = {}, last_b[kLanes] = {}, last[kLanes];
  const auto bytes = static_cast<size_t>(size - i) * sizeof *a;
  std::memcpy(last_a, a + i, bytes);
  std::memcpy(last_b, b + i, bytes);
  store_bfloat16(load_bfloat16(last_a) + load_bfloat16(last_b), last);
  std::memcpy(sum + i, last, bytes);
}

}  // namespace
}  // namespace apex::kernels::layers
