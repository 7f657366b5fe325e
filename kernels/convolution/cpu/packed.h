#pragma once

#include "kernels/convolution/axis_passes.h"
#include "kernels/memory_order.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace apex::kernels::convolution::cpu {

constexpr int64_t kMultipliedInTask = 1024 * 1024;  // minimum products per thread

inline int64_t tasks_worth_a_thread(int64_t work, int64_t work_in_task) {
  return ceil_div(work_in_task, std::max<int64_t>(1, work));
}

// Calls visit(i) for each i < count, in parallel if each thread gets enough work.
template <class Visit>
void in_parallel(int64_t count, int64_t work, int64_t work_in_task, const Visit& visit) {
  at::parallel_for(0, count, tasks_worth_a_thread(work, work_in_task), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i);
  });
}

// The AVX512-BF16 loops of the weight gradient and of weight packing. A dot-product instruction multiplies pairs of adjacent
// bfloat16 values and adds both products to one FP32 sum. The source file with these loops is compiled for that instruction set
// and shares no inline code with other files.

constexpr int64_t kLanes = 16;          // pairs, or FP32 sums, per register
constexpr int64_t kBlock = 2 * kLanes;  // output channels per block
constexpr int64_t kMaxRows = 12;        // input channels per tile: 24 of 32 registers hold sums
constexpr int64_t kMinRows = 8;         // the smallest tile when 16 or more input channels are split

// Two bfloat16 values: in the weight gradient one channel and pixel of two images, in a packed weight two channels.
using Pair = uint32_t;
using BFloat16Bits = uint16_t;

// Pixels of a pair of images. Strides are in pairs; adjacent pixels of `b` are kBlock apart.
struct Pixels {
  int64_t images, rows, columns;
  int64_t a_image, a_row, a_column;
  int64_t b_image, b_row;
};

struct PairProducts {
  // For each of `pixels` pixels, which lie `step` values apart, writes `channels` (at most kLanes) pairs to `to` and zeros to
  // the remaining lanes. Destinations are `to_step` pairs apart and aligned to 64 bytes. A null `second` is read as zeros.
  void (*interleave)(const BFloat16Bits* first, const BFloat16Bits* second, int64_t step, int64_t channels, int64_t pixels,
                     Pair* to, int64_t to_step);
  // sums[row * kBlock + column] = or += sum over pixels of a[row] * b[column]. `rows` is 1 or kMinRows to kMaxRows, `columns`
  // is kLanes or kBlock. If the strides of `a` are 0, every pixel uses the same row.
  void (*multiply)(const Pixels& pixels, const Pair* a, const Pair* b, int64_t rows, int64_t columns, bool add, float* sums);
  // to[column * to_step + row] = sums[row * kBlock + column], rounded to nearest even.
  void (*round_transposed)(const float* sums, int64_t rows, int64_t columns, BFloat16Bits* to, int64_t to_step);
};

extern const PairProducts kAvx512Bf16Products;

// The AVX512-BF16 loops of the forward convolution and of its input gradient. They sum over channels; a pair is two adjacent
// channels.

constexpr int64_t kChunk = 2 * kLanes;  // channels reduced per product
constexpr int64_t kMaxPixels = 14;      // pixels per tile: 28 of 32 registers hold sums

// A chunk of pixels, which lie kChunk values apart, and its weights, [kLanes pairs][kBlock]. Both are offsets from base
// pointers that all products share.
struct Product {
  int64_t pixel, weight;
};

struct PixelProducts {
  // to[column * to_step + row] = pair `column` of the row of values at row * from_step. kLanes rows and columns; `to` is
  // aligned to 64 bytes.
  void (*transpose)(const BFloat16Bits* from, int64_t from_step, Pair* to, int64_t to_step);
  // to[i * to_step + c] = bias[c] + the sum over `count` products of pixel i with the weights of channel c, rounded to nearest
  // even. At most kMaxPixels pixels; kBlock channels.
  void (*multiply)(const Product* products, int64_t count, const BFloat16Bits* pixels, const Pair* weights, const float* bias,
                   int64_t size, BFloat16Bits* to, int64_t to_step);
};

extern const PixelProducts kAvx512Bf16PixelProducts;

// Rows of one image of a channels-last tensor, padded, and laid out so that the pixels of adjacent results are adjacent:
// [row][chunk of channels][tap offset modulo the step][pixel][kChunk].
class Lines {
 public:
  // All passes must belong to the same axis.
  Lines(const at::Tensor& operand, const std::vector<Pass>& columns);

  // Number of values per row.
  int64_t row_size() const { return operand_.size(1) * static_cast<int64_t>(starts_.size()) * pixels_; }
  // Allocates memory for `rows` of the image; rows in the padding are included.
  void begin(int64_t image, Span rows);
  // Copies one row of the image.
  void copy(int64_t row) const;
  const BFloat16Bits* values() const { return elements(memory_); }
  // The offset in a row of the pixel that the first result reads for this tap.
  int64_t offset(int64_t chunk, const Tap& tap) const;

 private:
  int64_t chunks() const { return operand_.size(1) / kChunk; }
  // Copies every step_-th pixel from `column` on; pixels in the padding are zeros.
  void copy_pixels(const BFloat16Bits* row, int64_t column, BFloat16Bits* to) const;

  at::Tensor operand_, memory_;
  int64_t step_, lowest_, pixels_ = 0;
  std::vector<int64_t> starts_;  // remainders of (tap offset - lowest_) by the step
  int64_t image_ = 0;
  Span rows_{};
};

// A range of image pairs of a tensor, and a range of their rows.
struct Part {
  int64_t first_pair, pairs;
  Span rows;
};

// A channels-last tensor packed into pairs, part by part. Layout of each slice of channels:
// [pairs of images][rows][columns][pair_step].
class Packed {
 public:
  // Rows and columns are input positions of the axes. A slice has at most `pair_step` channels.
  Packed(const at::Tensor& tensor, const Axis& height, const Axis& width, std::vector<Span> slices, int64_t pair_step);

  const std::vector<Span>& slices() const { return slices_; }
  int64_t pair_step() const { return pair_step_; }
  int64_t row_step() const { return width_.input * pair_step_; }
  int64_t image_step() const { return part_.rows.size() * row_step(); }
  // Number of pairs per row (image_size: per image), over all slices.
  int64_t row_size() const { return static_cast<int64_t>(slices_.size()) * row_step(); }
  int64_t image_size() const { return height_.input * row_size(); }

  // Allocates memory for a part with `lines()` lines. A line is one row of one pair of images.
  void begin(const Part& part);
  // Frees the memory of the part.
  void end() { memory_ = at::Tensor(); }
  int64_t lines() const { return part_.pairs * part_.rows.size(); }
  void pack(const PairProducts& products, int64_t line) const;
  // The pairs of the first image pair from this position on.
  const Pair* at(int64_t slice, int64_t row, int64_t column) const;

 private:
  int64_t slice_step() const { return part_.pairs * image_step(); }

  at::Tensor tensor_, memory_;
  Axis height_, width_;
  std::vector<Span> slices_;
  int64_t pair_step_;
  Part part_{};
};

// A channels-last weight packed into pairs of the channels that are reduced:
// [block of results][tap][chunk of terms][kLanes][kBlock]. Both channel counts are multiples of kBlock and of kChunk.
class PackedWeight {
 public:
  // For the forward pass: results are output channels, sums run over input channels.
  static PackedWeight of_outputs(const PixelProducts& products, const at::Tensor& weight);
  // For the input gradient: results are input channels, sums run over output channels.
  static PackedWeight of_inputs(const PairProducts& products, const at::Tensor& weight);

  int64_t blocks() const { return blocks_; }
  int64_t chunks() const { return chunks_; }
  int64_t taps() const { return height_ * width_; }
  const Pair* block(int64_t i) const { return memory_.const_data_ptr<Pair>() + i * offset(height_, 0, 0); }
  // The offset in a block of the pairs of this tap and chunk.
  int64_t offset(int64_t down, int64_t across, int64_t chunk) const {
    return ((down * width_ + across) * chunks_ + chunk) * kLanes * kBlock;
  }

 private:
  PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms);
  // Calls pack_lanes(values of the first result and term channels, destination) for every kLanes result channels. The steps are
  // between adjacent channels of the weight.
  template <class PackLanes>
  void pack(const at::Tensor& weight, int64_t result_step, int64_t term_step, const PackLanes& pack_lanes);

  int64_t blocks_, height_, width_, chunks_;
  at::Tensor memory_;
};

}  // namespace apex::kernels::convolution::cpu
