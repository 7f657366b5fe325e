#pragma once
// ResNet-18 and ResNet-50 (He et al., 2015; strides in the 3x3 convolutions), with torchvision's parameter names.
#include <torch/nn.h>

#include <array>
#include <string>

namespace resnet {

namespace nn = torch::nn;

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

/// Two 3x3 convolutions; as a bottleneck, a 3x3 convolution between two 1x1 convolutions, the second with four times the
/// channels.
struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck) : bottleneck(bottleneck) {
    const auto out = bottleneck ? 4 * width : width;
    register_module("conv1", conv1 = bottleneck ? conv(in, width, 1) : conv(in, width, 3, stride));
    register_module("bn1", bn1 = nn::BatchNorm2d(width));
    register_module("conv2", conv2 = bottleneck ? conv(width, width, 3, stride) : conv(width, width, 3));
    register_module("bn2", bn2 = nn::BatchNorm2d(width));
    if (bottleneck) {
      register_module("conv3", conv3 = conv(width, out, 1));
      register_module("bn3", bn3 = nn::BatchNorm2d(out));
    }
    if (stride != 1 || in != out) {
      register_module("downsample", downsample = nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    if (bottleneck) y = bn3(conv3(torch::relu(y)));
    return torch::relu(y + (downsample ? downsample->forward(x) : x));
  }

  bool bottleneck;
  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  /// arch: "resnet18" or "resnet50".
  ResNetImpl(const std::string& arch, int64_t classes) {
    const bool bottleneck = arch == "resnet50";
    const std::array<int64_t, 4> blocks = bottleneck ? std::array<int64_t, 4>{3, 4, 6, 3} : std::array<int64_t, 4>{2, 2, 2, 2};
    register_module("conv1", conv1 = conv(3, 64, 7, 2));
    register_module("bn1", bn1 = nn::BatchNorm2d(64));
    int64_t channels = 64;
    for (size_t stage = 0; stage < 4; ++stage) {
      layers[stage] = register_module("layer" + std::to_string(stage + 1), nn::Sequential());
      const int64_t width = int64_t{64} << stage;
      for (int64_t i = 0; i < blocks[stage]; ++i) {
        layers[stage]->push_back(Block(channels, width, stage > 0 && i == 0 ? 2 : 1, bottleneck));
        channels = bottleneck ? 4 * width : width;
      }
    }
    register_module("fc", fc = nn::Linear(channels, classes));
    for (const auto& parameter : named_parameters()) {
      if (parameter.value().dim() == 4) nn::init::kaiming_normal_(parameter.value(), 0, torch::kFanOut, torch::kReLU);
    }
  }

  /// Maps normalized images (count, 3, height, width) to logits (count, classes).
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  std::array<nn::Sequential, 4> layers{nn::Sequential{nullptr}, nn::Sequential{nullptr}, nn::Sequential{nullptr},
                                       nn::Sequential{nullptr}};
  nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

}  // namespace resnet
