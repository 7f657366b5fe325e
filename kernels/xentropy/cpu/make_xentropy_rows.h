#pragma once

#include <cmath>

#include "kernels/xentropy/cpu/xentropy_cpu.h"

// Loops for files that are each compiled for one instruction set; compilers vectorize them. Everything, including the formulas
// instantiated on `Value`, is local to the including file.
namespace apex::kernels::xentropy::cpu {
namespace {

struct Value {
  float v;
};

Value add(Value a, Value b) { return {a.v + b.v}; }
Value subtract(Value a, Value b) { return {a.v - b.v}; }
Value multiply(Value a, Value b) { return {a.v * b.v}; }

uint32_t bits_of(Value value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value.v, sizeof bits);
  return bits;
}
Value with_bits(uint32_t bits) {
  Value value;
  __builtin_memcpy(&value.v, &bits, sizeof bits);
  return value;
}
// No branches, so loops vectorize.
Value unless_below(Value limit, Value x, Value y) {
  return with_bits(bits_of(y) & (static_cast<uint32_t>(x.v < limit.v) - 1u));
}
Value power_of_two(Value shifted) { return with_bits((bits_of(shifted) + 127u) << 23); }

float exponential_of(float x) { return exponential(Value{x}).v; }
double exponential_of(double x) { return std::exp(x); }

float gradient_of(float grad, float x, float lse, float target) {
  return grad_of(Value{grad}, Value{x}, Value{lse}, Value{target}).v;
}
double gradient_of(double grad, double x, double lse, double target) { return grad * (std::exp(x - lse) - target); }

double fold(double* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// NaN is ignored here; the sums propagate it.
template <class Real>
void keep_larger(const Real* x, int count, Real* most) {
#pragma omp simd
  for (int lane = 0; lane < count; ++lane) most[lane] = x[lane] > most[lane] ? x[lane] : most[lane];
}

template <class Real>
Real largest(const Real* x, int64_t classes) {
  alignas(64) Real most[kLanes];
  for (Real& each : most) each = x[0];
  int64_t i = 0;
  for (; i + kLanes <= classes; i += kLanes) keep_larger(x + i, kLanes, most);
  keep_larger(x + i, static_cast<int>(classes - i), most);
  for (int width = kLanes / 2; width > 0; width /= 2) keep_larger(most + width, width, most);
  return most[0];
}

// Adds one value to each of the first `count` lanes.
template <class Real>
void add_strip(const Real* x, Real largest_of_row, int count, double* exponentials, double* logits) {
#pragma omp simd
  for (int lane = 0; lane < count; ++lane) {
    exponentials[lane] += exponential_of(x[lane] - largest_of_row);
    logits[lane] += x[lane];
  }
}

template <class Real>
RowSums sums(const Real* x, Real largest_of_row, int64_t classes) {
  alignas(64) double exponentials[kLanes] = {}, logits[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= classes; i += kLanes) add_strip(x + i, largest_of_row, kLanes, exponentials, logits);
  add_strip(x + i, largest_of_row, static_cast<int>(classes - i), exponentials, logits);
  return {fold(exponentials), fold(logits)};
}

template <class Real>
void gradients(const Real* x, Real grad, Real lse, Real other, Real* __restrict dx, int64_t classes) {
#pragma omp simd
  for (int64_t i = 0; i < classes; ++i) dx[i] = gradient_of(grad, x[i], lse, other);
}

template <class Real>
constexpr RowKernels<Real> make_kernels() {
  return {largest<Real>, sums<Real>, gradients<Real>};
}

constexpr RowTable make_rows() { return {make_kernels<float>(), make_kernels<double>()}; }

}  // namespace
}  // namespace apex::kernels::xentropy::cpu
