#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace apex::amp::detail {

/// Where gradients are reported. Called by autograd's threads.
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual void add_output_grad(size_t call, size_t output, const at::Tensor& grad) = 0;
  virtual void add_input_grad(size_t call, size_t input, const at::Tensor& grad) = 0;
};

/// One call of an operator, as autograd knows it.
struct TappedCall {
  size_t number = 0;
  uint64_t first_node = 0;                    ///< sequence number from which on nodes of this thread belong to the call
  std::vector<torch::autograd::Edge> inputs;  ///< where the gradient of each input goes; invalid for none
  std::vector<at::Tensor> outputs;
};

/// Hooks on the autograd nodes that the call made report the gradients of its outputs, and what it adds to the gradients of its
/// inputs: after a cast that the call made, but before a weight's, whose one 16-bit copy serves several calls. The hooks go
/// with the graph.
void tap_gradients(const TappedCall& call, const std::weak_ptr<GradSink>& sink);

/// The same for the node of an autograd function; its inputs are counted as it takes them.
void tap_function(size_t call, torch::autograd::Node& function, const std::weak_ptr<GradSink>& sink);

}  // namespace apex::amp::detail
