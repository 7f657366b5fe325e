#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/convolution/axis.h"
#include "kernels/convolution/cpu/pair_products.h"

namespace apex::kernels::convolution::cpu {

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

}  // namespace apex::kernels::convolution::cpu
