#pragma once

#include "kernels/rules/moments.h"
#include "kernels/rules/random.h"

#include <cmath>

#if defined(__CUDACC__) || defined(__CUDA_ARCH__)
#include "kernels/cuda/device.cuh"
#endif

// Division and square root of float32 without branches. A device's IEEE operations branch to a slow path for operands far from
// 1; with several of them for each element, the branches keep a thread from working on its elements side by side. Here the
// operands are checked instead: a kernel computes a pack of elements with Quick, and repeats it with float in the rare case
// that a result is doubtful.
namespace apex::kernels::cuda {

// A value with the bits that float arithmetic gives, unless it is doubtful.
struct Quick {
  float value;
  bool doubtful;

  Quick() = default;
  DEVICE_BODY explicit Quick(float plain, bool is_doubtful = false) : value(plain), doubtful(is_doubtful) {}
};

#if !defined(__CUDACC__) && !defined(__CUDA_ARCH__)  // device.cuh has those of a GPU
inline float estimated_reciprocal(float value) { return 1.0f / value; }
inline float estimated_inverse_root(float value) { return 1.0f / std::sqrt(value); }
#endif

namespace detail {

// Whether a value is +0 or its magnitude is in [smallest, largest]. NaN is not.
DEVICE_BODY inline bool is_moderate(float value, float smallest, float largest) {
  const float size = fabsf(value);
  return (size >= smallest && size <= largest) || rules::to_bits(value) == 0;
}

DEVICE_BODY inline float fused(float a, float b, float c) { return fmaf(a, b, c); }

// From estimates of 1 / b and 1 / sqrt(value): the sequences in which a CUDA compiler divides and takes roots of moderate
// operands: Newton's steps, the last of which uses an exact remainder, so that the result is correctly rounded (Markstein 1990,
// see rules/moments.h).
DEVICE_BODY inline float quotient(float a, float b, float reciprocal) {
  reciprocal = fused(reciprocal, fused(-b, reciprocal, 1.0f), reciprocal);
  float result = rules::multiply(a, reciprocal);
  result = fused(fused(-b, result, a), reciprocal, result);
  return fused(fused(-b, result, a), reciprocal, result);
}
DEVICE_BODY inline float root(float value, float inverse) {
  const float estimate = rules::multiply(value, inverse);
  return fused(fused(-estimate, estimate, value), rules::multiply(inverse, 0.5f), estimate);
}

}  // namespace detail

DEVICE_BODY inline Quick add(Quick a, Quick b) { return Quick(rules::add(a.value, b.value), a.doubtful || b.doubtful); }
DEVICE_BODY inline Quick subtract(Quick a, Quick b) {
  return Quick(rules::subtract(a.value, b.value), a.doubtful || b.doubtful);
}
DEVICE_BODY inline Quick multiply(Quick a, Quick b) {
  return Quick(rules::multiply(a.value, b.value), a.doubtful || b.doubtful);
}
DEVICE_BODY inline double widen(Quick a) { return a.value; }
DEVICE_BODY inline Quick round_to_half(Quick a) { return Quick(rules::round_to_half(a.value), a.doubtful); }
DEVICE_BODY inline Quick round_at_random(Quick a, uint32_t key) {
  return Quick(rules::round_at_random(a.value, key), a.doubtful);
}

// Within these ranges quotient and remainders are normal: 2^-126 <= |a / b| <= 2^126, and the last bit of a remainder is at
// least 2^(-90 - 48).
DEVICE_BODY inline Quick divide(Quick a, Quick b) {
  const bool exact = detail::is_moderate(a.value, 0x1p-90f, 0x1p90f) && b.value >= 0x1p-36f && b.value <= 0x1p36f;
  return Quick(detail::quotient(a.value, b.value, estimated_reciprocal(b.value)), a.doubtful || b.doubtful || !exact);
}

DEVICE_BODY inline Quick divide(Quick a, const rules::Divisor& by) {
  using rules::Divisor;
  const bool exact = by.reciprocal != 0 && detail::is_moderate(a.value, Divisor::kSmallestDividend, Divisor::kLargestDividend);
  const float estimate = detail::fused(a.value, by.reciprocal, rules::multiply(a.value, by.rest));
  const float result = detail::fused(detail::fused(-by.value, estimate, a.value), by.reciprocal, estimate);
  return Quick(result, a.doubtful || !exact);
}

// As in rules/moments.h. A quotient by 1 has the bits of the dividend.
DEVICE_BODY inline Quick corrected(Quick mean, const rules::Divisor& correction) { return divide(mean, correction); }

// Within this range the estimate's square and its remainder are normal.
DEVICE_BODY inline Quick square_root(Quick a) {
  const bool zero = rules::to_bits(a.value) == 0;
  const bool exact = zero || (a.value >= 0x1p-90f && a.value <= 0x1p120f);
  return Quick(zero ? 0.0f : detail::root(a.value, estimated_inverse_root(a.value)), a.doubtful || !exact);
}

}  // namespace apex::kernels::cuda
