#include "kernels/layers/layers.h"

#include "kernels/cpu/isa.h"
#include "kernels/layers/cpu/layer_kernels.h"
#include "kernels/memory_order.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace apex::kernels {
namespace {

using layers::current_layers;
using layers::Rows;

constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 8192;          // elements
constexpr int64_t kLongestPeriod = 4096;  // elements
constexpr int64_t kBlocksWorthAThread = 4;
constexpr int64_t kRowsForCenter = 16;

int64_t period_of(int64_t channels) { return std::lcm(channels, kLanes); }

// The values of a per-channel tensor with any strides.
std::vector<float> values_of(const at::Tensor& of_channels) {
  const auto values = of_channels.accessor<float, 1>();
  std::vector<float> channels(static_cast<size_t>(values.size(0)));
  for (size_t i = 0; i < channels.size(); ++i) channels[i] = values[static_cast<int64_t>(i)];
  return channels;
}

// Repeats per-channel values for each position of a period.
std::vector<float> over_period(const std::vector<float>& channels) {
  std::vector<float> places(static_cast<size_t>(period_of(static_cast<int64_t>(channels.size()))));
  for (size_t i = 0; i < places.size(); ++i) places[i] = channels[i % channels.size()];
  return places;
}

// A tensor of value(i) for each channel i.
template <class Value>
at::Tensor tensor_of(int64_t channels, const Value& value) {
  const at::Tensor tensor = at::empty({channels}, at::kFloat);
  float* const to = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < channels; ++i) to[i] = static_cast<float>(value(static_cast<size_t>(i)));
  return tensor;
}

/// Cuts the rows into blocks; the cuts depend on the shape alone.
class Blocks {
 public:
  explicit Blocks(BatchNormShape shape)
      : period_(period_of(shape.channels)),
        size_(period_ * std::max<int64_t>(1, kBlock / period_)),
        elements_(shape.rows * shape.channels) {}

  int64_t count() const { return (elements_ + size_ - 1) / size_; }
  int64_t period() const { return period_; }

  /// Calls run(rows, offset of their first element, block number), on several threads.
  template <class Run>
  void for_each(const Run& run) const {
    at::parallel_for(0, count(), kBlocksWorthAThread, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) visit(block, run);
    });
  }

  /// As for_each, last block first: after for_each the last blocks are still in the caches.
  template <class Run>
  void for_each_back(const Run& run) const {
    at::parallel_for(0, count(), kBlocksWorthAThread, [&](int64_t begin, int64_t end) {
      for (int64_t block = end - 1; block >= begin; --block) visit(block, run);
    });
  }

 private:
  template <class Run>
  void visit(int64_t block, const Run& run) const {
    const int64_t first = block * size_;
    run(Rows{std::min(size_, elements_ - first), period_}, first, block);
  }

  int64_t period_, size_, elements_;
};

/// Two sums per channel: float32 within a block, float64 over the blocks.
struct ChannelSums {
  std::vector<double> first, second;
};

// Calls sum(rows, offset, first sums of the block, second sums of the block).
template <class Sum>
ChannelSums channel_sums(BatchNormShape shape, const Sum& sum) {
  const Blocks blocks(shape);
  const int64_t period = blocks.period();
  const at::Tensor partial = at::empty({blocks.count(), 2, period}, at::kFloat);
  float* const sums = partial.mutable_data_ptr<float>();
  blocks.for_each([&](Rows rows, int64_t at, int64_t block) {
    float* const first = sums + 2 * block * period;
    sum(rows, at, first, first + period);
  });
  const auto channels = static_cast<size_t>(shape.channels);
  ChannelSums totals{std::vector<double>(channels), std::vector<double>(channels)};
  for (int64_t row = 0; row < 2 * blocks.count(); ++row) {
    double* const to = (row % 2 == 0 ? totals.first : totals.second).data();
    for (int64_t place = 0; place < period; place += shape.channels) {
      const float* const from = sums + row * period + place;
      for (int64_t channel = 0; channel < shape.channels; ++channel) to[channel] += static_cast<double>(from[channel]);
    }
  }
  return totals;
}

// The mean of rows sampled from the whole tensor. It is close enough to the true mean for squared deviations to lose little
// precision.
std::vector<float> center_of(BatchNormShape shape, const at::Tensor& x) {
  const int64_t rows = std::min(kRowsForCenter, shape.rows);
  std::vector<float> center(static_cast<size_t>(shape.channels));
  const auto* const from = static_cast<const c10::BFloat16*>(x.const_data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    const auto* const row = from + i * shape.rows / rows * shape.channels;
    for (size_t channel = 0; channel < center.size(); ++channel) center[channel] += static_cast<float>(row[channel]);
  }
  for (float& value : center) value /= static_cast<float>(rows);
  return center;
}

}  // namespace

bool has_batch_norm(BatchNormShape shape) {
  return shape.rows > 0 && shape.channels > 0 && shape.rows * shape.channels % kLanes == 0 &&
         period_of(shape.channels) <= kLongestPeriod;
}

BatchStatistics batch_statistics(BatchNormShape shape, const at::Tensor& x) {
  const auto center = center_of(shape, x);
  const auto centers = over_period(center);
  const uint16_t* const from = elements(x);
  const auto sums = channel_sums(shape, [&](Rows rows, int64_t at, float* first, float* second) {
    current_layers().deviations(rows, from + at, centers.data(), first, second);
  });
  const auto rows = static_cast<double>(shape.rows);
  const auto variance = [&](size_t i) {
    const double from_center = sums.first[i] / rows, biased = sums.second[i] / rows - from_center * from_center;
    return biased < 0 ? 0 : biased;  // keeps NaN
  };
  return {tensor_of(shape.channels, [&](size_t i) { return static_cast<double>(center[i]) + sums.first[i] / rows; }),
          tensor_of(shape.channels, variance)};
}

at::Tensor inverse_std(const at::Tensor& variance, double eps) {
  const auto of_channels = values_of(variance);
  return tensor_of(variance.numel(), [&](size_t i) { return 1 / std::sqrt(static_cast<double>(of_channels[i]) + eps); });
}

void update_running(const at::Tensor& running, const at::Tensor& value, double factor, double momentum) {
  auto to = running.accessor<float, 1>();
  const auto from = value.accessor<float, 1>();
  for (int64_t i = 0; i < to.size(0); ++i) {
    const double kept = (1 - momentum) * static_cast<double>(to[i]);
    to[i] = static_cast<float>(kept + momentum * factor * static_cast<double>(from[i]));
  }
}

void batch_norm_forward(BatchNormShape shape, const at::Tensor& x, const BatchNormChannels& channels, const at::Tensor& y) {
  auto factor = values_of(channels.weight);
  const auto inv_std = values_of(channels.inv_std);
  for (size_t i = 0; i < factor.size(); ++i) factor[i] *= inv_std[i];
  const auto means = over_period(values_of(channels.mean)), factors = over_period(factor);
  const auto offsets = over_period(values_of(channels.bias));
  const uint16_t* const from = elements(x);
  uint16_t* const to = written_elements(y);
  Blocks(shape).for_each_back([&](Rows rows, int64_t at, int64_t) {
    current_layers().normalize(rows, from + at, means.data(), factors.data(), offsets.data(), to + at);
  });
}

BatchNormGrads batch_norm_backward(BatchNormShape shape, const at::Tensor& grad_y, const at::Tensor& x,
                                   const BatchNormChannels& channels, bool by_batch, const at::Tensor& grad_x) {
  const auto weight = values_of(channels.weight), inv_std = values_of(channels.inv_std);
  const auto means = over_period(values_of(channels.mean));
  const uint16_t* const grad = elements(grad_y);
  const uint16_t* const from = elements(x);
  const auto sums = channel_sums(shape, [&](Rows rows, int64_t at, float* first, float* second) {
    current_layers().grad_sums(rows, grad + at, from + at, means.data(), first, second);
  });
  const BatchNormGrads grads{
      tensor_of(shape.channels, [&](size_t i) { return sums.second[i] * static_cast<double>(inv_std[i]); }),
      tensor_of(shape.channels, [&](size_t i) { return sums.first[i]; })};
  if (!grad_x.defined()) return grads;
  // The terms that flow through mean and variance. They exist only with batch statistics.
  std::vector<float> factor(weight.size()), slope(weight.size()), offset(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) {
    const double std = static_cast<double>(inv_std[i]), scale = std * static_cast<double>(weight[i]);
    const double share = by_batch ? -scale / static_cast<double>(shape.rows) : 0;
    factor[i] = static_cast<float>(scale);
    slope[i] = static_cast<float>(share * std * std * sums.second[i]);
    offset[i] = static_cast<float>(share * sums.first[i]);
  }
  const auto factors = over_period(factor), slopes = over_period(slope), offsets = over_period(offset);
  uint16_t* const to = written_elements(grad_x);
  Blocks(shape).for_each_back([&](Rows rows, int64_t at, int64_t) {
    current_layers().grad_input(rows, grad + at, from + at, means.data(), factors.data(), slopes.data(), offsets.data(),
                                to + at);
  });
  return grads;
}

namespace {

constexpr int64_t kElementsWorthAThread = 32768;

uint16_t infinity_of(c10::ScalarType type) { return type == at::kHalf ? 0x7c00 : 0x7f80; }

}  // namespace

namespace layers {

const LayerKernels& current_layers() {
  return cpu::of_current_isa<kPortableLayers, kAvx2Layers, kAvx512Layers, kAvx512Bf16Layers>();
}

}  // namespace layers

void relu(const at::Tensor& x, const at::Tensor& y) {
  const uint16_t* const from = elements(x);
  uint16_t* const to = written_elements(y);
  const auto infinity = infinity_of(x.scalar_type());
  at::parallel_for(0, x.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().relu(from + begin, to + begin, end - begin, infinity);
  });
}

void relu_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_x) {
  const uint16_t* const grad = elements(grad_y);
  const uint16_t* const input = elements(x);
  uint16_t* const to = written_elements(grad_x);
  const auto infinity = infinity_of(x.scalar_type());
  at::parallel_for(0, x.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().relu_backward(grad + begin, input + begin, to + begin, end - begin, infinity);
  });
}

void add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum) {
  const uint16_t* const first = elements(a);
  const uint16_t* const second = elements(b);
  uint16_t* const to = written_elements(sum);
  at::parallel_for(0, a.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().add(first + begin, second + begin, to + begin, end - begin);
  });
}

}  // namespace apex::kernels
