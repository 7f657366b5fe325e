#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace bench::train {

/// What is trained: a stack of layers whose output are the logits of classes, [N, classes].
struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl(torch::nn::Sequential stack) : layers(register_module("layers", std::move(stack))) {}
  at::Tensor forward(const at::Tensor& input) { return layers->forward(input); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Network);

struct Batch {
  at::Tensor input;
  at::Tensor target;  // [N], the classes
};

/// A network, FP32 and on the CPU, and what it learns. Both are made from the default generator. `quick`: so small that a step
/// takes milliseconds.
struct Task {
  const char* name;
  Network (*network)(bool quick);
  Batch (*batch)(bool quick);
};

/// All of them; a new one is a file that makes one of these, and a line in network.cpp.
const std::vector<Task>& tasks();

Task residual_task();
Task transformer_task();
Task mlp_task();
Task lstm_task();
Task small_transformer_task();

}  // namespace bench::train
