#include "models/residual_block.h"

#include <ATen/ops/relu.h>

namespace train {
namespace {

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(int64_t in, int64_t out, int64_t stride)
    : conv1(convolution(in, out, 3, stride)), conv2(convolution(out, out, 3, 1)), norm1(out), norm2(out) {
  register_module("conv1", conv1);
  register_module("norm1", norm1);
  register_module("conv2", conv2);
  register_module("norm2", norm2);
  if (in != out || stride != 1) {
    shortcut->push_back(convolution(in, out, 1, stride));
    shortcut->push_back(torch::nn::BatchNorm2d(out));
  }
  register_module("shortcut", shortcut);
}

torch::Tensor ResidualBlockImpl::forward(torch::Tensor x) {
  const auto inner = norm2(conv2(at::relu(norm1(conv1(x)))));
  return at::relu(inner + (shortcut->is_empty() ? x : shortcut->forward(x)));
}

}  // namespace train
