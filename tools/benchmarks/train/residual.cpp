// A residual network on images of 32x32 pixels, with batch norm. Weights and images are channels-last.
#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "network.h"

namespace bench::train {
namespace {

namespace nn = torch::nn;

constexpr int64_t kImageClasses = 10, kColours = 3;

struct ImageSizes {
  std::vector<int64_t> widths;  // per stage; each stage but the first halves the resolution
  int blocks;                   // per stage
  int64_t batch, pixels;        // pixels: the side of an image
};

ImageSizes image_sizes(bool quick) {
  if (quick) return {{16, 32}, 1, 4, 8};
  return {{32, 64, 128}, 2, 32, 32};
}

nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two convolutions added to the input, which passes through a 1x1 convolution if the shape changes.
struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride) {
    layers = register_module("layers", nn::Sequential(convolution(in, out, 3, stride), nn::BatchNorm2d(out), nn::ReLU(),
                                                      convolution(out, out, 3, 1), nn::BatchNorm2d(out)));
    shortcut = register_module("shortcut", nn::Sequential());
    if (in == out && stride == 1) return;
    shortcut->push_back(convolution(in, out, 1, stride));
    shortcut->push_back(nn::BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::relu(layers->forward(x) + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }

  nn::Sequential layers{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(ResidualBlock);

void lay_channels_last(const nn::Module& network) {
  for (auto& parameter : network.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

Network residual_network(bool quick) {
  const auto sizes = image_sizes(quick);
  int64_t channels = sizes.widths.front();
  nn::Sequential layers(convolution(kColours, channels, 3, 1), nn::BatchNorm2d(channels), nn::ReLU());
  for (const auto width : sizes.widths) {
    for (int block = 0; block < sizes.blocks; ++block) {
      layers->push_back(ResidualBlock(channels, width, channels == width ? 1 : 2));
      channels = width;
    }
  }
  layers->push_back(nn::AdaptiveAvgPool2d(1));
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(channels, kImageClasses));
  Network network(layers);
  lay_channels_last(*network);
  return network;
}

Batch images(bool quick) {
  const auto sizes = image_sizes(quick);
  return {at::randn({sizes.batch, kColours, sizes.pixels, sizes.pixels}).contiguous(at::MemoryFormat::ChannelsLast),
          at::randint(kImageClasses, {sizes.batch}, at::kLong)};
}

}  // namespace

Task residual_task() { return {"conv", residual_network, images}; }

}  // namespace bench::train
