#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/cpu/pixel_products.h"
#include "kernels/convolution/pass.h"
#include "kernels/elements.h"

namespace apex::kernels::convolution::cpu {

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

}  // namespace apex::kernels::convolution::cpu
