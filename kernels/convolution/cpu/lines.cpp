#include "kernels/convolution/cpu/lines.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <limits>

namespace apex::kernels::convolution::cpu {
namespace {

constexpr size_t kChunkBytes = kChunk * sizeof(BFloat16Bits);

}  // namespace

Lines::Lines(const at::Tensor& operand, const std::vector<Pass>& columns)
    : operand_(operand), step_(columns.front().operand_step), lowest_(std::numeric_limits<int64_t>::max()) {
  for (const Pass& pass : columns) {
    for (const Tap& tap : pass.taps) lowest_ = std::min(lowest_, tap.offset);
  }
  for (const Pass& pass : columns) {
    for (const Tap& tap : pass.taps) {
      const int64_t way = tap.offset - lowest_, start = way % step_;
      pixels_ = std::max(pixels_, way / step_ + pass.count);
      if (std::find(starts_.begin(), starts_.end(), start) == starts_.end()) starts_.push_back(start);
    }
  }
}

void Lines::begin(int64_t image, Span rows) {
  image_ = image;
  rows_ = rows;
  const int64_t size = std::max<int64_t>(1, rows.size() * row_size());
  if (!memory_.defined() || memory_.numel() < size) memory_ = at::empty({size}, operand_.options());
}

void Lines::copy(int64_t row) const {
  const int64_t line = operand_.size(3) * operand_.size(1);
  const auto* const from = elements(operand_) + (image_ * operand_.size(2) + row) * line;
  auto* to = written_elements(memory_) + (row - rows_.begin) * row_size();
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    for (const int64_t start : starts_) {
      copy_pixels(from + chunk * kChunk, lowest_ + start, to);
      to += pixels_ * kChunk;
    }
  }
}

void Lines::copy_pixels(const BFloat16Bits* row, int64_t column, BFloat16Bits* to) const {
  const int64_t columns = operand_.size(3), channels = operand_.size(1);
  const int64_t begin = std::min(pixels_, ceil_div(std::max<int64_t>(0, -column), step_));
  const int64_t end = std::clamp(ceil_div(std::max<int64_t>(0, columns - column), step_), begin, pixels_);
  std::memset(to, 0, static_cast<size_t>(begin) * kChunkBytes);
  for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * kChunk, row + (column + i * step_) * channels, kChunkBytes);
  std::memset(to + end * kChunk, 0, static_cast<size_t>(pixels_ - end) * kChunkBytes);
}

int64_t Lines::offset(int64_t chunk, const Tap& tap) const {
  const int64_t way = tap.offset - lowest_;
  const auto start = std::find(starts_.begin(), starts_.end(), way % step_) - starts_.begin();
  return ((chunk * static_cast<int64_t>(starts_.size()) + start) * pixels_ + way / step_) * kChunk;
}

}  // namespace apex::kernels::convolution::cpu
