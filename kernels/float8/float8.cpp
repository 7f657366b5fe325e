#include "kernels/float8/float8.h"

#include "kernels/cpu/isa.h"
#include "kernels/float8/cpu/float8_kernels.h"
#include "kernels/memory_order.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

namespace apex::kernels {
namespace float8 {

const Float8Kernels& current_float8() { return cpu::of_current_isa<kPortableFloat8, kAvx2Float8, kAvx512Float8>(); }

namespace {

constexpr int64_t kElementsWorthATask = 32768;
constexpr int64_t kTile = 2048;              // columns; a multiple of the usual blocks
constexpr uint16_t kInfinity = 0x7f80;       // of bfloat16
constexpr uint16_t kLargestMantissa = 0x60;  // of 1.75, in bfloat16

// 2^exponent
float power_of_two(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The scale of a block, from the bits of its largest magnitude.
Scale scale_of(uint16_t largest, const Format& format) {
  if (largest == 0) return {1, 1};
  if (largest >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  const int exponent = (largest >> 7) - 127;
  const bool is_above = (largest & 0x7f) > kLargestMantissa;
  const int of_scale = std::min(format.largest_exponent - exponent - static_cast<int>(is_above), kLargestScaleExponent);
  return {power_of_two(of_scale), power_of_two(-of_scale)};
}

// How a tensor lies in memory: dense matrices, one after the other.
struct Matrices {
  int64_t count, rows, columns;
};

const Format& format_of(Float8 format) { return format == Float8::e4m3 ? kE4m3 : kE5m2; }

class Rounding {
 public:
  Rounding(const at::Tensor& x, Float8 format, const at::Tensor& y)
      : from_(elements(x)),
        to_(written_elements(y)),
        format_(format_of(format)),
        round_(format == Float8::e4m3 ? current_float8().round_to_e4m3 : current_float8().round_to_e5m2) {}

  // The bits of the largest magnitude.
  uint16_t largest(int64_t size) const {
    return in_tasks(size, [&](int64_t begin, int64_t end, uint16_t* largest) { add_largest(begin, end, largest); });
  }

  // One scale for all elements.
  void whole(int64_t size, Scale scale) const {
    at::parallel_for(0, size, kElementsWorthATask, [&](int64_t begin, int64_t end) { round(begin, end, scale); });
  }

  // The same, and returns the bits of the largest magnitude, in one walk through memory.
  uint16_t whole_and_largest(int64_t size, Scale scale) const {
    return in_tasks(size, [&](int64_t begin, int64_t end, uint16_t* largest) {
      for (int64_t at = begin; at < end; at += kTile) {
        add_largest(at, std::min(end, at + kTile), largest);
        round(at, std::min(end, at + kTile), scale);
      }
    });
  }

  // One scale for each block; they are written to `scales`, [matrices, blocks of rows, blocks of columns].
  void by_blocks(Matrices shape, Float8Blocks blocks, float* scales) const {
    const int64_t tile = blocks_in(kTile, blocks.columns) * blocks.columns;
    const int64_t bands = blocks_in(shape.rows, blocks.rows), tiles = blocks_in(shape.columns, tile);
    const int64_t grain = std::max<int64_t>(1, kElementsWorthATask / (blocks.rows * std::min(tile, shape.columns)));
    const int64_t blocks_in_row = blocks_in(shape.columns, blocks.columns);
    at::parallel_for(0, shape.count * bands * tiles, grain, [&](int64_t begin, int64_t end) {
      std::vector<uint16_t> largest;
      std::vector<Scale> of_blocks;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t band = task / tiles, column = task % tiles * tile;
        const int64_t row = band % bands * blocks.rows;
        const int64_t at = (band / bands * shape.rows + row) * shape.columns + column;
        const Run run{std::min(tile, shape.columns - column), blocks.columns};
        largest.assign(static_cast<size_t>(blocks_in(run.size, run.columns)), 0);
        of_blocks.resize(largest.size());
        one_band(at, std::min(blocks.rows, shape.rows - row), shape.columns, run, largest.data(), of_blocks.data());
        float* const to = scales + band * blocks_in_row + column / blocks.columns;
        for (size_t i = 0; i < of_blocks.size(); ++i) to[i] = of_blocks[i].scale;
      }
    });
  }

 private:
  static Run one_block(int64_t size) { return {size, std::max<int64_t>(2, size)}; }

  void add_largest(int64_t begin, int64_t end, uint16_t* largest) const {
    current_float8().add_largest(from_ + begin, one_block(end - begin), largest);
  }

  void round(int64_t begin, int64_t end, Scale scale) const {
    round_(from_ + begin, one_block(end - begin), &scale, to_ + begin);
  }

  // Each task finds the largest magnitude of its elements.
  template <class Task>
  static uint16_t in_tasks(int64_t size, const Task& task) {
    std::atomic<uint16_t> result{0};
    at::parallel_for(0, size, kElementsWorthATask, [&](int64_t begin, int64_t end) {
      uint16_t here = 0;
      task(begin, end, &here);
      uint16_t before = result.load();
      while (before < here && !result.compare_exchange_weak(before, here)) {
      }
    });
    return result.load();
  }

  void one_band(int64_t at, int64_t rows, int64_t stride, Run run, uint16_t* largest, Scale* scales) const {
    for (int64_t row = 0; row < rows; ++row) current_float8().add_largest(from_ + at + row * stride, run, largest);
    const int64_t count = blocks_in(run.size, run.columns);
    std::transform(largest, largest + count, scales, [&](uint16_t bits) { return scale_of(bits, format_); });
    for (int64_t row = 0; row < rows; ++row) round_(from_ + at + row * stride, run, scales, to_ + at + row * stride);
  }

  const uint16_t* from_;
  uint16_t* to_;
  const Format& format_;
  void (*round_)(const uint16_t*, Run, const Scale*, uint16_t*);
};

// x as dense matrices in memory.
Float8Values round_dense(const at::Tensor& x, Float8 format, Float8Blocks blocks) {
  const at::Tensor y = at::empty_like(x);
  const Rounding rounding(x, format, y);
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const Matrices shape{rows * columns == 0 ? 0 : x.numel() / (rows * columns), rows, columns};
  const at::Tensor scales =
      at::empty({shape.count, blocks_in(rows, blocks.rows), blocks_in(columns, blocks.columns)}, at::kFloat);
  if (x.numel() > 0) rounding.by_blocks(shape, blocks, scales.mutable_data_ptr<float>());
  return {y, scales};
}

// Any dense memory order.
Float8Values round_whole(const at::Tensor& x, Float8 format) {
  const at::Tensor y = at::empty_like(x);
  const Rounding rounding(x, format, y);
  const Scale scale = scale_of(rounding.largest(x.numel()), format_of(format));
  rounding.whole(x.numel(), scale);
  return {y, at::full({1}, scale.scale, at::kFloat)};
}

float bfloat16_of(uint16_t bits) { return c10::detail::f32_from_bits(bits); }

Float8ByGivenScale round_with(const at::Tensor& x, Float8 format, float given) {
  const at::Tensor y = at::empty_like(x);
  const Rounding rounding(x, format, y);
  Scale scale{given, 1 / given};
  uint16_t largest = 0;
  if (given == 0) {
    largest = rounding.largest(x.numel());
    rounding.whole(x.numel(), scale = scale_of(largest, format_of(format)));
  } else {
    largest = rounding.whole_and_largest(x.numel(), scale);
  }
  if (largest >= kInfinity) {
    scale = scale_of(largest, format_of(format));  // NaN
    y.fill_(scale.scale);
  }
  return {{y, at::full({1}, scale.scale, at::kFloat)}, at::full({1}, bfloat16_of(std::min(largest, kInfinity)), at::kFloat)};
}

at::Tensor in_dense_memory(const at::Tensor& x) { return x.is_non_overlapping_and_dense() ? x : x.contiguous(); }

}  // namespace
}  // namespace float8

Float8Values round_to_float8(const at::Tensor& x, Float8 format, Float8Blocks blocks) {
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kBFloat16 && x.dim() >= 2);
  TORCH_INTERNAL_ASSERT(blocks.rows >= 0 && blocks.columns >= 0 && (blocks.rows == 0) == (blocks.columns == 0));
  if (!x.is_cpu()) return round_to_float8_by_aten(x, format, blocks);
  if (blocks.rows == 0) return float8::round_whole(float8::in_dense_memory(x), format);
  if (x.is_contiguous() || !x.mT().is_contiguous()) return float8::round_dense(x.contiguous(), format, blocks);
  const Float8Values transposed = float8::round_dense(x.mT(), format, blocks.transposed());
  return {transposed.values.mT(), transposed.scales.mT()};
}

Float8ByGivenScale round_to_float8_with(const at::Tensor& x, Float8 format, const at::Tensor& scale) {
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kBFloat16 && scale.scalar_type() == at::kFloat && scale.numel() == 1);
  if (!x.is_cpu()) return round_to_float8_with_by_aten(x, format, scale);
  return float8::round_with(float8::in_dense_memory(x), format, *scale.const_data_ptr<float>());
}

}  // namespace apex::kernels
