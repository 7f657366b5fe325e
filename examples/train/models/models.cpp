#include "models/models.h"

#include <algorithm>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "errors.h"
#include "models/residual_block.h"

namespace train {
namespace {

namespace nn = torch::nn;

void add_stem(nn::Sequential& layers, int64_t in, int64_t out) {
  layers->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
  layers->push_back(nn::BatchNorm2d(out));
  layers->push_back(nn::ReLU());
}

void add_head(nn::Sequential& layers, double dropout, int64_t in, int64_t classes) {
  if (dropout > 0) {
    layers->push_back(nn::Dropout(dropout));
  }
  layers->push_back(nn::Linear(in, classes));
}

// Halving the image once for every stage but the first must leave something of it.
void require_size(const ModelConfig& config, const ImageShape& image) {
  const auto halvings = static_cast<int64_t>(config.widths.size()) - 1;
  if (halvings > 30 || std::min(image.height, image.width) >> halvings == 0) {
    throw UserError("key 'model.widths': " + std::to_string(config.widths.size()) + " stages are too many for images of " +
                    std::to_string(image.height) + "x" + std::to_string(image.width));
  }
}

nn::Sequential mlp(const ModelConfig& config, const ImageShape& image, int64_t classes) {
  nn::Sequential layers{nn::Flatten()};
  auto units = image.channels * image.height * image.width;
  for (const auto width : config.widths) {
    layers->push_back(nn::Linear(units, width));
    if (config.batch_norm) layers->push_back(nn::BatchNorm1d(width));
    layers->push_back(nn::ReLU());
    units = width;
  }
  add_head(layers, config.dropout, units, classes);
  return layers;
}

nn::Sequential convnet(const ModelConfig& config, ImageShape image, int64_t classes) {
  require_size(config, image);
  nn::Sequential layers;
  for (size_t stage = 0; stage < config.widths.size(); ++stage) {
    add_stem(layers, image.channels, config.widths[stage]);
    image.channels = config.widths[stage];
    if (stage > 0) {
      layers->push_back(nn::MaxPool2d(2));
      image.height /= 2;
      image.width /= 2;
    }
  }
  layers->push_back(nn::Flatten());
  add_head(layers, config.dropout, image.channels * image.height * image.width, classes);
  return layers;
}

nn::Sequential resnet(const ModelConfig& config, const ImageShape& image, int64_t classes) {
  require_size(config, image);
  nn::Sequential layers;
  auto channels = config.widths.front();
  add_stem(layers, image.channels, channels);
  for (size_t stage = 0; stage < config.widths.size(); ++stage) {
    for (int64_t block = 0; block < config.blocks[stage]; ++block) {
      layers->push_back(ResidualBlock(channels, config.widths[stage], stage > 0 && block == 0 ? 2 : 1));
      channels = config.widths[stage];
    }
  }
  layers->push_back(nn::AdaptiveAvgPool2d(1));
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(channels, classes));
  return layers;
}

// Of one side of an image, behind a convolution of stride 2 and three poolings.
int64_t left_by_alexnet(int64_t side) { return (side + 1) / 2 / 8; }

void add_convolutions(nn::Sequential& layers, int64_t channels) {
  struct Stage {
    int64_t width, stride;
    bool pools;
  };
  for (const auto& [width, stride, pools] :
       {Stage{64, 2, true}, Stage{192, 1, true}, Stage{384, 1, false}, Stage{256, 1, false}, Stage{256, 1, true}}) {
    layers->push_back(nn::Conv2d(nn::Conv2dOptions(channels, width, 3).stride(stride).padding(1)));
    layers->push_back(nn::ReLU());
    if (pools) layers->push_back(nn::MaxPool2d(2));
    channels = width;
  }
}

nn::Sequential alexnet(const ModelConfig& config, const ImageShape& image, int64_t classes) {
  constexpr int64_t kChannels = 256, kUnits = 4096;
  const auto height = left_by_alexnet(image.height), width = left_by_alexnet(image.width);
  if (height * width == 0) {
    throw UserError("key 'model.type': nothing is left of images of " + std::to_string(image.height) + "x" +
                    std::to_string(image.width) + " after alexnet has halved them four times; give 'data.image_size: 32'");
  }
  nn::Sequential layers;
  add_convolutions(layers, image.channels);
  layers->push_back(nn::Flatten());
  for (const auto inputs : {kChannels * height * width, kUnits}) {
    add_head(layers, config.dropout, inputs, kUnits);
    layers->push_back(nn::ReLU());
  }
  layers->push_back(nn::Linear(kUnits, classes));
  return layers;
}

}  // namespace

ClassifierImpl::ClassifierImpl(nn::Sequential stack) : layers(register_module("layers", std::move(stack))) {}

torch::Tensor ClassifierImpl::forward(torch::Tensor images) { return layers->forward(std::move(images)); }

Classifier make_classifier(const ModelConfig& config, const ImageShape& image, int64_t classes) {
  if (config.type == "mlp") {
    return Classifier(mlp(config, image, classes));
  }
  if (config.type == "alexnet") {
    return Classifier(alexnet(config, image, classes));
  }
  return Classifier(config.type == "convnet" ? convnet(config, image, classes) : resnet(config, image, classes));
}

}  // namespace train
