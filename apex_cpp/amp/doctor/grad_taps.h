#pragma once
// IWYU pragma: private, include <apex_cpp/amp/doctor.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace apex::amp::detail {

/// Receives gradients. Called by autograd's threads.
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual void add_output_grad(size_t call, size_t output, const at::Tensor& grad) = 0;
  virtual void add_input_grad(size_t call, size_t input, const at::Tensor& grad) = 0;
};

/// One call of an operator, with its autograd edges.
struct TappedCall {
  size_t number = 0;
  uint64_t first_node = 0;  ///< nodes of this thread with this sequence number or a later one belong to the call
  std::vector<torch::autograd::Edge> inputs;  ///< gradient edge of each input; invalid if the input requires no gradient
  std::vector<at::Tensor> outputs;
};

/// Adds hooks to the autograd nodes that the call created. The hooks report the gradients of the call's outputs, and the call's
/// share of the gradients of its inputs. The share of an input is reported after a cast that the call made. The share of a
/// weight is reported before the weight's cast, because several calls use the same 16-bit copy. The hooks live as long as the
/// graph.
void tap_gradients(const TappedCall& call, const std::weak_ptr<GradSink>& sink);

/// The same for the node of an autograd function. Inputs are numbered in the order in which the function takes them.
void tap_function(size_t call, torch::autograd::Node& function, const std::weak_ptr<GradSink>& sink);

}  // namespace apex::amp::detail
