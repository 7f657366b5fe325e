#pragma once

#include "kernels/layers/cpu/layer_kernels.h"

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

// Loops over one register of values at a time, as vectors of the compiler: GCC splits wider vectors into moves through memory
// and scalar comparisons. Each position has its own sum, so the register width does not change the result. Everything is local
// to each source file, so that the linker cannot merge code of different instruction sets.
namespace apex::kernels::layers {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t SignedWords __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Elements __attribute__((vector_size(2 * kLanes)));

[[gnu::always_inline]] inline Floats load_values(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

[[gnu::always_inline]] inline void store_values(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

[[gnu::always_inline]] inline Floats load_bfloat16(const uint16_t* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto words = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Elements elements;
  std::memcpy(&elements, from, sizeof elements);
  const Words words = __builtin_convertvector(elements, Words);
#endif
  return reinterpret_cast<Floats>(words << 16);
}

#ifdef __AVX512BF16__
// Rounds with the hardware instruction if that gives the same bits. It does not for NaN and for subnormal values, which it
// flushes to zero.
[[gnu::always_inline]] inline bool store_by_instruction(Floats values, uint16_t* to) {
  constexpr int kSignalingNan = 0x80, kSubnormal = 0x20, kQuietNan = 0x01;
  const auto floats = (__m512)values;
  if (_mm512_fpclass_ps_mask(floats, kSignalingNan | kSubnormal | kQuietNan) != 0) return false;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(floats));
  return true;
}
#endif

// Same result as rules::Store<BFloat16>: nearest even, NaN becomes 0x7fc0.
[[gnu::always_inline]] inline void store_bfloat16(Floats values, uint16_t* to) {
#ifdef __AVX512BF16__
  if (__builtin_expect(store_by_instruction(values, to), true)) return;
#endif
  const Words bits = reinterpret_cast<Words>(values);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A signed comparison: AVX2 has no unsigned one.
  const auto is_nan = reinterpret_cast<Words>(reinterpret_cast<SignedWords>(bits & 0x7fffffffu) > 0x7f800000);
  const Elements elements = __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), Elements);
  std::memcpy(to, &elements, sizeof elements);
}

// Rows with separate sums, joined at the end, so that additions do not wait for each other.
constexpr int64_t kUnrolled = 4;

struct TwoSums {
  Floats first, second;
};

// For each of `period` positions, the sums over the rows that add_to(sums, element offset, position) accumulates.
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

// Calls run(element offset, position in the period) for each vector.
template <class Run>
[[gnu::always_inline]] inline void for_all(Rows rows, const Run& run) {
  for (int64_t row = 0; row < rows.size; row += rows.period) {
    for (int64_t column = 0; column < rows.period; column += kLanes) run(row + column, column);
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

// All ones if the bits are a NaN.
inline uint16_t if_nan(uint16_t bits, uint16_t infinity) { return static_cast<uint16_t>(-((bits & 0x7fff) > infinity)); }

// -0 stays -0, as in LibTorch.
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

constexpr LayerKernels make_layers() { return {relu, relu_backward, add, deviations, normalize, grad_sums, grad_input}; }

}  // namespace
}  // namespace apex::kernels::layers
