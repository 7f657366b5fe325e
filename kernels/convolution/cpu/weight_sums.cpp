#include "kernels/convolution/cpu/convolution_cpu.h"

#include <ATen/ops/empty.h>

#include "kernels/convolution/cpu/packed.h"
#include "kernels/memory_order.h"

// Weight gradients are sums over images and pixels. A pair holds the same pixel of two images, so taps, strides and dilations
// only change offsets and counts, and padding is never read. The pairs of some images, or of some rows of two images, are
// packed and their products added to the sums; then the next part follows. The size of a part depends on the shapes alone, and
// threads divide the sums, not the terms of a sum: results have the same bits at any number of threads. Several WeightSums may
// each accumulate some of the images; their number, too, depends on the shapes alone.
namespace apex::kernels::convolution::cpu {
namespace {

constexpr int64_t kPairsInPart = 128 * 1024;  // pairs that fit into the L2 cache of a core
constexpr int64_t kFewestPixels = 192;        // with fewer pixels a pass spends its time on loading and storing sums

// Minimum work per thread.
constexpr int64_t kPackedInTask = 16 * 1024, kRoundedInTask = 16 * 1024, kAddedInTask = 8 * 1024;

constexpr Pair kOnes = 0x3f803f80;

std::vector<Span> cut_evenly(int64_t size, int64_t at_most) {
  const int64_t slices = ceil_div(size, at_most);
  std::vector<Span> cut;
  for (int64_t i = 0; i < slices; ++i) cut.push_back({i * size / slices, (i + 1) * size / slices});
  return cut;
}

std::vector<Span> cut_full(int64_t size, int64_t full) {
  std::vector<Span> cut;
  for (int64_t i = 0; i < size; i += full) cut.push_back({i, std::min(size, i + full)});
  return cut;
}

Axis outputs_of(const Axis& axis) { return {axis.output, axis.output, 1, 1, 0, 1}; }

}  // namespace

WeightSums::WeightSums(const PairProducts& products, const at::Tensor& grad_output, const at::Tensor& input, const Axis& height,
                       const Axis& width, Span image_pairs, bool with_bias)
    : products_(products),
      height_(height.without_unread()),
      width_(width.without_unread()),
      input_channels_(input.size(1)),
      output_channels_(grad_output.size(1)),
      image_pairs_(image_pairs),
      inputs_(input, height_, width_, cut_evenly(input_channels_, kMaxRows), kLanes),
      outputs_(grad_output, outputs_of(height), outputs_of(width), cut_full(output_channels_, kBlock), kBlock),
      with_bias_(with_bias),
      sums_(at::empty({blocks(), taps() * input_channels_ + 1, kBlock}, input.options().dtype(at::kFloat))) {}

void WeightSums::sum() {
  const int64_t height = height_.output, image = inputs_.image_size() + outputs_.image_size();
  const int64_t pairs_at_least = ceil_div(kFewestPixels, height * width_.output);
  const int64_t all = image_pairs_.size();
  const int64_t pairs = std::clamp<int64_t>(kPairsInPart / image, std::min(pairs_at_least, all), all);
  const int64_t rows_at_least = ceil_div(kFewestPixels, width_.output);
  const int64_t rows =
      pairs > 1 ? height : std::clamp<int64_t>(kPairsInPart * height / image, std::min(rows_at_least, height), height);
  for (int64_t pair = image_pairs_.begin; pair < image_pairs_.end; pair += pairs) {
    for (int64_t row = 0; row < height; row += rows) {
      const bool to_sums = pair > image_pairs_.begin || row > 0;
      sum_part({pair, std::min(pairs, image_pairs_.end - pair), {row, std::min(row + rows, height)}}, to_sums);
    }
  }
  // Frees the memory, so that the thread's next WeightSums reuses addresses that its caches hold.
  inputs_.end();
  outputs_.end();
}

void WeightSums::sum_part(const Part& part, bool to_sums) {
  pack(inputs_, {part.first_pair, part.pairs, height_.inputs_of(part.rows)});
  pack(outputs_, part);
  const int64_t slices = static_cast<int64_t>(inputs_.slices().size()), tiles = blocks() * slices * height_.kernel;
  const int64_t work = outputs_.lines() * width_.output * width_.kernel * kMaxRows * kBlock;
  in_parallel(tiles + (with_bias_ ? blocks() : 0), work, kMultipliedInTask, [&](int64_t i) {
    if (i >= tiles) return multiply_ones(part, i - tiles, to_sums);
    const int64_t slice = i / height_.kernel;
    multiply_taps(part, slice / slices, slice % slices, i % height_.kernel, to_sums);
  });
}

// Unused sums (the bias's without `with_bias`, lanes past the last channel) are uninitialized; adding them is harmless.
void WeightSums::add_up(std::vector<WeightSums>& all) {
  float* const to = all.front().sums_of(0, 0);
  at::parallel_for(0, all.front().sums_.numel(), kAddedInTask, [&](int64_t begin, int64_t end) {
    for (size_t other = 1; other < all.size(); ++other) {
      const float* const from = all[other].sums_of(0, 0);
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  });
}

void WeightSums::pack(Packed& operand, const Part& part) const {
  operand.begin(part);
  in_parallel(operand.lines(), operand.row_size(), kPackedInTask, [&](int64_t line) { operand.pack(products_, line); });
}

void WeightSums::multiply_taps(const Part& part, int64_t block, int64_t slice, int64_t tap_row, bool to_sums) const {
  const Span rows = height_.valid(tap_row, part.rows), channels = inputs_.slices()[static_cast<size_t>(slice)];
  for (int64_t tap = 0; tap < width_.kernel; ++tap) {
    const Span columns = width_.valid(tap, {0, width_.output});
    const Pixels pixels{part.pairs,
                        columns.size() > 0 ? rows.size() : 0,
                        columns.size(),
                        inputs_.image_step(),
                        height_.stride * inputs_.row_step(),
                        width_.stride * inputs_.pair_step(),
                        outputs_.image_step(),
                        outputs_.row_step()};
    const Pair* const input = inputs_.at(slice, rows.begin * height_.stride + height_.offset(tap_row),
                                         columns.begin * width_.stride + width_.offset(tap));
    products_.multiply(pixels, input, outputs_.at(block, rows.begin, columns.begin), channels.size(), lanes_of(block), to_sums,
                       sums_of(block, (tap_row * width_.kernel + tap) * input_channels_ + channels.begin));
  }
}

void WeightSums::multiply_ones(const Part& part, int64_t block, bool to_sums) const {
  const Pixels pixels{part.pairs, part.rows.size(), width_.output, 0, 0, 0, outputs_.image_step(), outputs_.row_step()};
  products_.multiply(pixels, &kOnes, outputs_.at(block, part.rows.begin, 0), 1, lanes_of(block), to_sums,
                     sums_of(block, taps() * input_channels_));
}

int64_t WeightSums::lanes_of(int64_t block) const {
  return outputs_.slices()[static_cast<size_t>(block)].size() > kLanes ? kBlock : kLanes;
}

float* WeightSums::sums_of(int64_t block, int64_t row) const {
  return static_cast<float*>(sums_.data_ptr()) + (block * (taps() * input_channels_ + 1) + row) * kBlock;
}

at::Tensor WeightSums::weight_grad() const {
  const at::Tensor grad = at::empty({output_channels_, input_channels_, height_.kernel, width_.kernel},
                                    sums_.options().dtype(at::kBFloat16), at::MemoryFormat::ChannelsLast);
  auto* const values = written_elements(grad);
  const int64_t step = taps() * input_channels_;
  in_parallel(blocks() * taps(), input_channels_ * kBlock, kRoundedInTask, [&](int64_t i) {
    const int64_t block = i / taps(), first = i % taps() * input_channels_;
    const Span columns = outputs_.slices()[static_cast<size_t>(block)];
    products_.round_transposed(sums_of(block, first), input_channels_, columns.size(), values + columns.begin * step + first,
                               step);
  });
  return grad;
}

at::Tensor WeightSums::bias_grad() const {
  const at::Tensor grad = at::empty({output_channels_}, sums_.options().dtype(at::kBFloat16));
  auto* const values = written_elements(grad);
  for (int64_t block = 0; block < blocks(); ++block) {
    const Span columns = outputs_.slices()[static_cast<size_t>(block)];
    products_.round_transposed(sums_of(block, taps() * input_channels_), 1, columns.size(), values + columns.begin, 1);
  }
  return grad;
}

}  // namespace apex::kernels::convolution::cpu
