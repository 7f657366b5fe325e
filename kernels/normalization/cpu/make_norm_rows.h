#pragma once

#include "kernels/normalization/cpu/normalization_cpu.h"
#include "kernels/normalization/formulas.h"

// Loops for files that are each compiled for one instruction set; compilers vectorize them. Everything, including the formulas
// instantiated on `Value`, is local to the including file.
namespace apex::kernels::normalization::cpu {
namespace {

template <class Real>
struct Value {
  Real v;
};

template <class Real>
Value<Real> add(Value<Real> a, Value<Real> b) {
  return {a.v + b.v};
}
template <class Real>
Value<Real> subtract(Value<Real> a, Value<Real> b) {
  return {a.v - b.v};
}
template <class Real>
Value<Real> multiply(Value<Real> a, Value<Real> b) {
  return {a.v * b.v};
}
template <class Real>
Value<Real> divide(Value<Real> a, Value<Real> b) {
  return {a.v / b.v};
}
template <class Real>
Value<Real> square_root(Value<Real> a) {
  return {static_cast<Real>(sizeof(Real) == sizeof(float) ? __builtin_sqrtf(static_cast<float>(a.v)) : __builtin_sqrt(a.v))};
}

template <class Real>
Value<Real> not_negative(Value<Real> value) {
  return {normalization::not_negative(value.v)};
}

// Lanes from `used` on hold 0, so folding fewer lanes gives the same bits.
template <class Real>
Value<Real> fold_used(Value<Real>* lanes, int64_t used) {
  if (used <= 16) return fold<16>(lanes);
  return used <= 64 ? fold<64>(lanes) : fold<kLanes>(lanes);
}

template <class Real, int kSums>
struct Sums {
  Real values[kSums];
};

// Sums over i < size in the order that formulas.h defines. strip(i, count, lanes) adds terms i ... i + count - 1 to the first
// `count` lanes of each sum.
template <class Real, int kSums, class Strip>
Sums<Real, kSums> ordered_sums(int64_t size, const Strip& strip) {
  Value<Real> slots[kSums][kSlots] = {};
  for (int slot = 0; slot < kSlots && slot * kSegment < size; ++slot) {
    alignas(64) Value<Real> lanes[kSums][kLanes] = {};
    for (int64_t segment = slot * kSegment; segment < size; segment += kSlots * kSegment) {
      const int64_t end = segment + kSegment < size ? segment + kSegment : size;
      int64_t i = segment;
      for (; i + kLanes <= end; i += kLanes) strip(i, kLanes, lanes);
      if (i < end) strip(i, static_cast<int>(end - i), lanes);
    }
    for (int s = 0; s < kSums; ++s) slots[s][slot] = fold_used(lanes[s], size);
  }
  Sums<Real, kSums> sums;
  for (int s = 0; s < kSums; ++s) sums.values[s] = size <= kSegment ? slots[s][0].v : fold<kSlots>(slots[s]).v;
  return sums;
}

template <class Real>
Value<Real> at(const Real* values, int64_t i) {
  return {values[i]};
}

template <class Kind, class Real>
struct Rows {
  using V = Value<Real>;

  static RowStatistics<Real> statistics(const Real* x, int64_t size, Real eps) {
    const V count{static_cast<Real>(size)};
    const V rounded_mean = Kind::kCentered ? divide(sum_of(x, size), count) : V{0};
    constexpr int kSums = Kind::kCentered ? 2 : 1;
    const auto sums = ordered_sums<Real, kSums>(size, [=](int64_t i, int used, auto& lanes) {
#pragma omp simd
      for (int lane = 0; lane < used; ++lane) {
        const V from_mean = deviation<Kind>(at(x, i + lane), rounded_mean);
        lanes[0][lane] = add(lanes[0][lane], multiply(from_mean, from_mean));
        if constexpr (Kind::kCentered) lanes[1][lane] = add(lanes[1][lane], from_mean);
      }
    });
    Centre<V> row{rounded_mean, {sums.values[0]}};
    if constexpr (Kind::kCentered) row = centre(row.mean, V{sums.values[1]}, row.squares, count);
    return {row.mean.v, inverse_std(row.squares, count, V{eps}).v};
  }

  static void forward(const Real* x, RowStatistics<Real> row, const Real* weight, const Real* bias, Real* y, int64_t size) {
    const V mean{row.mean}, inv_std{row.inv_std};
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      y[i] = output<Kind>(normalized<Kind>(at(x, i), mean, inv_std), at(weight, i), bias_at(bias, i)).v;
    }
  }

  static GradMeans<Real> means_by_input(const Real* x, RowStatistics<Real> row, const Real* dy, const Real* weight, Real* x_hat,
                                        int64_t size) {
    const V mean{row.mean}, inv_std{row.inv_std};
    return grad_means([=](int64_t i) { return normalized<Kind>(at(x, i), mean, inv_std); }, dy, weight, x_hat, size);
  }

  static GradMeans<Real> means_by_output(const Real* y, const Real* divisors, const Real* bias, const Real* dy,
                                         const Real* weight, Real* x_hat, int64_t size) {
    return grad_means([=](int64_t i) { return recovered<Kind>(at(y, i), at(divisors, i), bias_at(bias, i)); }, dy, weight,
                      x_hat, size);
  }

  static void gradients(const Real* dy, const Real* weight, const Real* x_hat, GradMeans<Real> means, Real inv_std, Real* dx,
                        Real* weight_sums, Real* bias_sums, int64_t size) {
    const V mean_g{means.plain}, mean_g_x_hat{means.with_x_hat}, scale{inv_std};
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const V g = multiply(at(dy, i), at(weight, i));
      dx[i] = grad_input<Kind>(g, at(x_hat, i), mean_g, mean_g_x_hat, scale).v;
      weight_sums[i] = add(at(weight_sums, i), multiply(at(dy, i), at(x_hat, i))).v;
      if constexpr (Kind::kCentered) bias_sums[i] = add(at(bias_sums, i), at(dy, i)).v;
    }
  }

  static constexpr RowKernels<Real> table() { return {statistics, forward, means_by_input, means_by_output, gradients}; }

 private:
  static V sum_of(const Real* x, int64_t size) {
    const auto sums = ordered_sums<Real, 1>(size, [x](int64_t i, int count, auto& lanes) {
#pragma omp simd
      for (int lane = 0; lane < count; ++lane) lanes[0][lane] = add(lanes[0][lane], at(x, i + lane));
    });
    return {sums.values[0]};
  }

  template <class XHatAt>
  static GradMeans<Real> grad_means(const XHatAt& x_hat_at, const Real* dy, const Real* weight, Real* x_hat, int64_t size) {
    const auto sums = ordered_sums<Real, 2>(size, [=](int64_t first, int count, auto& lanes) {
#pragma omp simd
      for (int lane = 0; lane < count; ++lane) {
        const int64_t i = first + lane;
        const V value = x_hat_at(i), g = multiply(at(dy, i), at(weight, i));
        x_hat[i] = value.v;
        if constexpr (Kind::kCentered) lanes[0][lane] = add(lanes[0][lane], g);
        lanes[1][lane] = add(lanes[1][lane], multiply(g, value));
      }
    });
    const auto count_of_values = static_cast<Real>(size);
    return {sums.values[0] / count_of_values, sums.values[1] / count_of_values};
  }

  static V bias_at(const Real* bias, int64_t i) {
    if constexpr (Kind::kCentered) {
      return at(bias, i);
    } else {
      return V{0};
    }
  }
};

constexpr RowTables make_rows() {
  return {{Rows<Layer, float>::table(), Rows<Rms, float>::table()}, {Rows<Layer, double>::table(), Rows<Rms, double>::table()}};
}

}  // namespace
}  // namespace apex::kernels::normalization::cpu
