#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

namespace train {

/// ResNet's basic block: two 3x3 convolutions with batch norm, added to the input (through a 1x1 convolution where the number
/// of channels or the size changes), then ReLU. [N, in, H, W] to [N, out, H / stride, W / stride].
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d norm1, norm2;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(ResidualBlock);

}  // namespace train
