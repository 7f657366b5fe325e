#pragma once

#include "kernels/convolution/pass.h"
#include "kernels/memory_order.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace apex::kernels::convolution::cpu {

constexpr int64_t kMultipliedInTask = 1024 * 1024;  // products that are worth a thread

inline int64_t tasks_worth_a_thread(int64_t work, int64_t work_in_task) {
  return ceil_div(work_in_task, std::max<int64_t>(1, work));
}

// Calls visit(i) for i < count, on threads that have a task's work each.
template <class Visit>
void in_parallel(int64_t count, int64_t work, int64_t work_in_task, const Visit& visit) {
  at::parallel_for(0, count, tasks_worth_a_thread(work, work_in_task), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i);
  });
}

}  // namespace apex::kernels::convolution::cpu

// The loops of the weight gradient, and of packing weights, that need AVX512-BF16, whose products take two neighbouring
// bfloat16 values at a time and add both to one FP32 sum. The file that has them shares nothing else with the rest: it is
// compiled for that instruction set.
namespace apex::kernels::convolution::cpu {

constexpr int64_t kLanes = 16;          // pairs, or sums, in a register
constexpr int64_t kBlock = 2 * kLanes;  // channels whose results are summed at a time
constexpr int64_t kMaxRows = 12;        // input channels at a time: 24 of 32 registers hold sums
constexpr int64_t kMinRows = 8;         // what 16 channels or more are cut into at least

// Two values: of one channel at one pixel, of two images; or of a weight, of two channels.
using Pair = uint32_t;
using BFloat16Bits = uint16_t;

// Pixels of two images whose pairs are multiplied. Strides are in pairs; neighbouring pixels of `b` are kBlock apart.
struct Pixels {
  int64_t images, rows, columns;
  int64_t a_image, a_row, a_column;
  int64_t b_image, b_row;
};

struct PairProducts {
  // Writes `channels` (at most kLanes) pairs for each of `pixels` pixels that are `step` values apart, to `to`, `to_step` pairs
  // apart and aligned to 64 bytes each; the other lanes become 0. `second` may be null: its values are 0.
  void (*interleave)(const BFloat16Bits* first, const BFloat16Bits* second, int64_t step, int64_t channels, int64_t pixels,
                     Pair* to, int64_t to_step);
  // sums[row * kBlock + column] = or += sum over pixels of a[row] * b[column]; 1 or kMinRows to kMaxRows rows, kLanes or kBlock
  // columns. `a` has the same row at every pixel where its strides are 0.
  void (*multiply)(const Pixels& pixels, const Pair* a, const Pair* b, int64_t rows, int64_t columns, bool add, float* sums);
  // to[column * to_step + row] = sums[row * kBlock + column], rounded to nearest even.
  void (*round_transposed)(const float* sums, int64_t rows, int64_t columns, BFloat16Bits* to, int64_t to_step);
};

extern const PairProducts kAvx512Bf16Products;

}  // namespace apex::kernels::convolution::cpu

// The loops of a convolution, and of the gradient of its input, that need AVX512-BF16 (see pair_products.h): sums over
// channels, of which two neighbouring ones are a pair.
namespace apex::kernels::convolution::cpu {

constexpr int64_t kChunk = 2 * kLanes;  // channels whose products are added up at a time
constexpr int64_t kMaxPixels = 14;      // that are summed at a time: 28 of 32 registers hold sums

// A chunk of pixels that are kChunk values apart, and its weights: [kLanes pairs][kBlock]. Both count from a place that they
// share with other products.
struct Product {
  int64_t pixel, weight;
};

struct PixelProducts {
  // to[column * to_step + row] = pair `column` of the values from row * from_step on; kLanes of each, `to` aligned to 64 bytes.
  void (*transpose)(const BFloat16Bits* from, int64_t from_step, Pair* to, int64_t to_step);
  // to[i * to_step + c] = bias[c] + the sum over `count` products of pixel i with the weights of c, rounded to nearest even; up
  // to kMaxPixels pixels, kBlock channels.
  void (*multiply)(const Product* products, int64_t count, const BFloat16Bits* pixels, const Pair* weights, const float* bias,
                   int64_t size, BFloat16Bits* to, int64_t to_step);
};

extern const PixelProducts kAvx512Bf16PixelProducts;

// Rows of one image of a channels-last tensor, with padding, so laid out that the pixels of neighbouring results lie next to
// each other: [row][chunk of channels][remainder of a tap's offset by the step][pixel][kChunk].
class Lines {
 public:
  // The passes are of one axis.
  Lines(const at::Tensor& operand, const std::vector<Pass>& columns);

  // Values of a row.
  int64_t row_size() const { return operand_.size(1) * static_cast<int64_t>(starts_.size()) * pixels_; }
  // Makes room for rows of an image, be they in it or beside it.
  void begin(int64_t image, Span rows);
  // Copies a row of the image.
  void copy(int64_t row) const;
  const BFloat16Bits* values() const { return elements(memory_); }
  // Where in a row the first result's pixel lies for this tap.
  int64_t offset(int64_t chunk, const Tap& tap) const;

 private:
  int64_t chunks() const { return operand_.size(1) / kChunk; }
  // The pixels from `column` on, every step_-th; those beside the image are zeros.
  void copy_pixels(const BFloat16Bits* row, int64_t column, BFloat16Bits* to) const;

  at::Tensor operand_, memory_;
  int64_t step_, lowest_, pixels_ = 0;
  std::vector<int64_t> starts_;  // from the lowest offset, below the step
  int64_t image_ = 0;
  Span rows_{};
};

// Some images of a tensor, two at a time, and some of their rows.
struct Part {
  int64_t first_pair, pairs;
  Span rows;
};

// A channels-last tensor's values in pairs, part by part: slices of the channels, and in each [pairs of images][rows][columns]
// [pair_step].
class Packed {
 public:
  // Rows and columns are the positions that the axes' `input` counts. A slice has at most `pair_step` channels.
  Packed(const at::Tensor& tensor, const Axis& height, const Axis& width, std::vector<Span> slices, int64_t pair_step);

  const std::vector<Span>& slices() const { return slices_; }
  int64_t pair_step() const { return pair_step_; }
  int64_t row_step() const { return width_.input * pair_step_; }
  int64_t image_step() const { return part_.rows.size() * row_step(); }
  // How many pairs a row, or an image, has in all slices.
  int64_t row_size() const { return static_cast<int64_t>(slices_.size()) * row_step(); }
  int64_t image_size() const { return height_.input * row_size(); }

  // Makes room for a part, of so many lines: rows of pairs of images.
  void begin(const Part& part);
  // Frees that memory.
  void end() { memory_ = at::Tensor(); }
  int64_t lines() const { return part_.pairs * part_.rows.size(); }
  void pack(const PairProducts& products, int64_t line) const;
  // The first image's pairs from there on.
  const Pair* at(int64_t slice, int64_t row, int64_t column) const;

 private:
  int64_t slice_step() const { return part_.pairs * image_step(); }

  at::Tensor tensor_, memory_;
  Axis height_, width_;
  std::vector<Span> slices_;
  int64_t pair_step_;
  Part part_{};
};

// A channels-last weight's values in pairs of the channels that sums go over: [block of results][tap][chunk of terms][kLanes]
// [kBlock]. Both numbers of channels are multiples of kBlock and of kChunk.
class PackedWeight {
 public:
  // For results in output channels, sums over input channels.
  static PackedWeight of_outputs(const PixelProducts& products, const at::Tensor& weight);
  // For results in input channels, sums over output channels.
  static PackedWeight of_inputs(const PairProducts& products, const at::Tensor& weight);

  int64_t blocks() const { return blocks_; }
  int64_t chunks() const { return chunks_; }
  int64_t taps() const { return height_ * width_; }
  const Pair* block(int64_t i) const { return memory_.const_data_ptr<Pair>() + i * offset(height_, 0, 0); }
  // Where in a block the pairs lie that this tap and chunk have.
  int64_t offset(int64_t down, int64_t across, int64_t chunk) const {
    return ((down * width_ + across) * chunks_ + chunk) * kLanes * kBlock;
  }

 private:
  PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms);
  // pack_lanes(values of the first channel of results and of terms, where its pairs go), for each kLanes channels of results.
  // The steps are between neighbouring channels of the weight.
  template <class PackLanes>
  void pack(const at::Tensor& weight, int64_t result_step, int64_t term_step, const PackLanes& pack_lanes);

  int64_t blocks_, height_, width_, chunks_;
  at::Tensor memory_;
};

}  // namespace apex::kernels::convolution::cpu
