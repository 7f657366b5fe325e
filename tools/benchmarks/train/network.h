#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace bench::train {

/// A network to train: layers whose output is class logits, [N, classes].
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

/// A network, FP32 on the CPU, and its training data. Both are drawn from the default generator. `quick`: so small that a step
/// takes milliseconds.
struct Task {
  const char* name;
  Network (*network)(bool quick);
  Batch (*batch)(bool quick);
};

/// All tasks. A new one needs a file that defines it and a line in network.cpp.
const std::vector<Task>& tasks();

Task residual_task();
Task transformer_task();
Task mlp_task();
Task lstm_task();
Task small_transformer_task();

}  // namespace bench::train
