#include "kernels/convolution/cpu/packed.h"

#include "kernels/memory_order.h"

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

Packed::Packed(const at::Tensor& tensor, const Axis& height, const Axis& width, std::vector<Span> slices, int64_t pair_step)
    : tensor_(tensor), height_(height), width_(width), slices_(std::move(slices)), pair_step_(pair_step) {}

void Packed::begin(const Part& part) {
  part_ = part;
  const int64_t size = std::max<int64_t>(1, static_cast<int64_t>(slices_.size()) * slice_step());
  if (!memory_.defined() || memory_.numel() < size) memory_ = at::empty({size}, tensor_.options().dtype(at::kInt));
}

void Packed::pack(const PairProducts& products, int64_t line) const {
  const int64_t channels = tensor_.size(1), columns = tensor_.size(3), image = channels * tensor_.size(2) * columns;
  const int64_t pair = line / part_.rows.size(), row = part_.rows.begin + line % part_.rows.size();
  const int64_t first = 2 * (part_.first_pair + pair);
  const int64_t begin = first * image + ((height_.first + row * height_.step) * columns + width_.first) * channels;
  const BFloat16Bits* const values = elements(tensor_) + begin;
  const BFloat16Bits* const others = first + 1 < tensor_.size(0) ? values + image : nullptr;
  Pair* to = static_cast<Pair*>(memory_.data_ptr()) + line * row_step();
  for (const Span& slice : slices_) {
    for (int64_t channel = slice.begin; channel < slice.end; channel += kLanes) {
      products.interleave(values + channel, others != nullptr ? others + channel : nullptr, width_.step * channels,
                          std::min(slice.end - channel, kLanes), width_.input, to + (channel - slice.begin), pair_step_);
    }
    to += slice_step();
  }
}

const Pair* Packed::at(int64_t slice, int64_t row, int64_t column) const {
  return static_cast<const Pair*>(memory_.const_data_ptr()) + slice * slice_step() + (row - part_.rows.begin) * row_step() +
         column * pair_step_;
}

namespace {

constexpr int64_t kWeightsInTask = 32 * 1024;  // minimum work per thread

int64_t output_step_of(const at::Tensor& weight) { return weight.size(1) * weight.size(2) * weight.size(3); }

}  // namespace

PackedWeight::PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms)
    : blocks_(results / kBlock),
      height_(weight.size(2)),
      width_(weight.size(3)),
      chunks_(terms / kChunk),
      memory_(at::empty({weight.numel() / 2}, weight.options().dtype(at::kUInt32))) {}

template <class PackLanes>
void PackedWeight::pack(const at::Tensor& weight, int64_t result_step, int64_t term_step, const PackLanes& pack_lanes) {
  const BFloat16Bits* const values = elements(weight);
  Pair* const pairs = memory_.mutable_data_ptr<Pair>();
  in_parallel(blocks_ * taps() * chunks_, kBlock * kChunk, kWeightsInTask, [&](int64_t i) {
    const int64_t block = i / chunks_ / taps(), tap = i / chunks_ % taps(), chunk = i % chunks_;
    const BFloat16Bits* const from = values + block * kBlock * result_step + tap * weight.size(1) + chunk * kChunk * term_step;
    Pair* const to = pairs + i * kLanes * kBlock;
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) pack_lanes(from + lane * result_step, to + lane);
  });
}

PackedWeight PackedWeight::of_outputs(const PixelProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(0), weight.size(1));
  const int64_t output_step = output_step_of(weight);
  packed.pack(weight, output_step, 1,
              [&](const BFloat16Bits* from, Pair* to) { products.transpose(from, output_step, to, kBlock); });
  return packed;
}

PackedWeight PackedWeight::of_inputs(const PairProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(1), weight.size(0));
  const int64_t output_step = output_step_of(weight);
  packed.pack(weight, 1, output_step, [&](const BFloat16Bits* from, Pair* to) {
    products.interleave(from, from + output_step, 2 * output_step, kLanes, kLanes, to, kBlock);
  });
  return packed;
}

}  // namespace apex::kernels::convolution::cpu
