#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <typeinfo>

// Parts of autograd that LibTorch declares in torch/csrc and does not offer to programs. The functions are inline: the cast
// engine calls some of them for every operator.
namespace apex::torch_compat {

/// What `graph_task` returns outside of backward passes.
inline constexpr int kNoGraphTask = -1;

/// The number of the backward pass that runs on this thread, or `kNoGraphTask`.
inline int graph_task() { return torch::autograd::get_current_graph_task_id(); }

/// Whether the backward pass that runs on this thread keeps its graph.
inline bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

/// The pointer that owns a node: `std::shared_ptr` in LibTorch 2.11, `c10::intrusive_ptr` in 2.15.
using NodePtr = decltype(torch::autograd::get_current_node());

/// The node whose backward formula runs on this thread; null outside of backward passes.
inline NodePtr current_node() { return torch::autograd::get_current_node(); }

/// Whether the node belongs to a `torch::autograd::Function`, whose nodes are of the class template `CppNode`.
inline bool is_function_node(const torch::autograd::Node& node) {
  return std::strstr(typeid(node).name(), "CppNode") != nullptr;
}

/// What autograd knows of a tensor; null for a tensor that never took part in autograd.
inline const torch::autograd::AutogradMeta* autograd_meta(const at::Tensor& tensor) {
  return torch::autograd::impl::get_autograd_meta(tensor);
}

/// The node that adds gradients to a leaf, made if the leaf has none.
inline NodePtr grad_accumulator(const at::Tensor& leaf) { return torch::autograd::impl::grad_accumulator(leaf); }
/// The same node, or null if the leaf has none.
inline NodePtr existing_grad_accumulator(const at::Tensor& leaf) {
  return torch::autograd::impl::try_get_grad_accumulator(leaf);
}
/// Gives a leaf back the node that `set_data` dropped, with the hooks on the node.
inline void set_grad_accumulator(const at::Tensor& leaf, const NodePtr& accumulator) {
  using WeakNodePtr = decltype(torch::autograd::AutogradMeta::grad_accumulator_);
  torch::autograd::impl::set_grad_accumulator(leaf, WeakNodePtr(accumulator));
}

/// Whether gradients go on from a view of a leaf to the leaf without a change: the view has neither hooks nor a gradient of its
/// own to keep, and its node leads straight to the leaf's accumulator.
inline bool passes_gradients_to(const torch::autograd::AutogradMeta& view, const at::Tensor& leaf) {
  const auto& made_by = view.grad_fn_;
  if (!made_by || view.retains_grad_ || !view.hooks_.empty() || !made_by->tensor_pre_hooks().empty()) return false;
  return made_by->next_edge(0).function == existing_grad_accumulator(leaf);
}

}  // namespace apex::torch_compat
