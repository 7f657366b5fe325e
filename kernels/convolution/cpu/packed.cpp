#include "kernels/convolution/cpu/packed.h"

#include <ATen/ops/empty.h>

#include "kernels/elements.h"

namespace apex::kernels::convolution::cpu {

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

}  // namespace apex::kernels::convolution::cpu
