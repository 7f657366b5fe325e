#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include "config/config.h"
#include "data/dataset.h"

namespace train {

/// Any of the networks below, as one C++ type: float images [N, C, H, W] to class scores [N, classes].
struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(torch::nn::Sequential stack);
  torch::Tensor forward(torch::Tensor images);

  torch::nn::Sequential layers;
};
TORCH_MODULE(Classifier);

/// Builds the network that the config describes, in FP32 on the CPU, with weights drawn from LibTorch's CPU generator:
/// - mlp: linear layers of `widths` units with ReLU;
/// - convnet: 3x3 convolution, batch norm, ReLU for each of `widths`, 2x2 max-pooling after every stage but the first;
/// - resnet: a 3x3 convolution, then stages of `blocks` basic blocks of `widths` channels, each stage but the first halving the
///   image, then the mean over the image;
/// - alexnet: AlexNet for images of 32x32: five convolutions of torchvision's widths, all 3x3, the first with stride 2, 2x2
///   max-pooling after the first, second and fifth, then two linear layers of 4096 units, all with ReLU.
/// Throws UserError where the images are too small for that.
Classifier make_classifier(const ModelConfig& config, const ImageShape& image, int64_t classes);

}  // namespace train
