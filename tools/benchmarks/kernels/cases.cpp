#include "cases.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <functional>
#include <numeric>

namespace bench::kernels {
namespace {

/// A convolution without bias, and the batch norm after it.
void add_convolution(Shapes& shapes, int64_t out, int64_t in, int64_t kernel) {
  shapes.push_back({out, in, kernel, kernel});
  shapes.push_back({out});
  shapes.push_back({out});
}

/// The 161 parameters of ResNet-50, 25.6 million elements: stages of bottleneck blocks between a stem and a classifier.
Shapes resnet50() {
  struct Stage {
    int64_t width;
    int blocks;
  };
  constexpr Stage kStages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  constexpr int64_t kExpansion = 4, kClasses = 1000;
  Shapes shapes;
  int64_t channels = 64;
  add_convolution(shapes, channels, 3, 7);
  for (const auto& [width, blocks] : kStages) {
    for (int block = 0; block < blocks; ++block) {
      add_convolution(shapes, width, channels, 1);
      add_convolution(shapes, width, width, 3);
      add_convolution(shapes, kExpansion * width, width, 1);
      if (block == 0) add_convolution(shapes, kExpansion * width, channels, 1);
      channels = kExpansion * width;
    }
  }
  shapes.push_back({kClasses, channels});
  shapes.push_back({kClasses});
  return shapes;
}

/// Sizes at and next to multiples of vectors, blocks, pages and chunks: 10 million elements.
Shapes odd_sizes() {
  constexpr int64_t kSizes[] = {1, 3, 15, 17, 33, 511, 513, 1023, 4095, 4097, 65535, 65537, 99991, 271829};
  constexpr int kTimes = 20;
  Shapes shapes;
  for (int i = 0; i < kTimes; ++i) {
    for (const int64_t size : kSizes) shapes.push_back({size});
  }
  return shapes;
}

template <class Make>
Tensors tensors(const Case& shapes, const Make& make) {
  Tensors made;
  made.reserve(shapes.shapes.size());
  for (const auto& shape : shapes.shapes) made.push_back(make(at::IntArrayRef(shape)));
  return made;
}

}  // namespace

const std::vector<Case>& cases() {
  constexpr int64_t kMi = 1 << 20;
  static const std::vector<Case> all{
      {"4 x 16 Mi", Shapes(4, {16 * kMi})}, {"ResNet-50", resnet50()},
      {"odd sizes", odd_sizes()},           {"2,000 x 1 k", Shapes(2000, {1024})},
      {"25,000 x 64", Shapes(25000, {64})}, {"1 x 1", {{1}}},
  };
  return all;
}

int64_t numel_of(const Case& shapes) {
  int64_t numel = 0;
  for (const auto& shape : shapes.shapes) numel += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return numel;
}

Tensors random(const Case& shapes, at::ScalarType dtype, at::Device device) {
  return tensors(shapes, [&](at::IntArrayRef shape) { return at::randn(shape, device).to(dtype); });
}

Tensors filled(const Case& shapes, at::ScalarType dtype, at::Device device, double value) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  return tensors(shapes, [&](at::IntArrayRef shape) { return at::full(shape, value, options); });
}

}  // namespace bench::kernels
