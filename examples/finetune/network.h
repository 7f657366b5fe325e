#pragma once
// A convolutional network in two parts: the backbone that pretrain.py trains, and a new head.
#include <torch/nn.h>

struct BackboneImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm1(conv1(x)));
    return torch::relu(norm2(conv2(x))).amax({2, 3});  // (count, 32)
  }

  torch::nn::Conv2d conv1 = register_module("conv1", conv3x3(1, 16));
  torch::nn::BatchNorm2d norm1 = register_module("norm1", torch::nn::BatchNorm2d(16));
  torch::nn::Conv2d conv2 = register_module("conv2", conv3x3(16, 32));
  torch::nn::BatchNorm2d norm2 = register_module("norm2", torch::nn::BatchNorm2d(32));

 private:
  static torch::nn::Conv2d conv3x3(int64_t in, int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  }
};
TORCH_MODULE(Backbone);

struct ClassifierImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(backbone(x)); }

  /// Freezes the backbone's weights and its batch norm statistics, or unfreezes them.
  void freeze_backbone(bool frozen) {
    for (auto& parameter : backbone->parameters()) parameter.set_requires_grad(!frozen);
    backbone->train(!frozen);
  }

  Backbone backbone = register_module("backbone", Backbone());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 10));
};
TORCH_MODULE(Classifier);
