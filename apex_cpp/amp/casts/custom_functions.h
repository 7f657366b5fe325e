#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <string>

namespace torch::autograd {
struct Node;
}

namespace apex::amp::detail {

/// Remembers which autograd nodes were created within scopes of one kind, by their per-thread sequence numbers, so that the
/// state at a node's creation can be looked up later. Keeps the newest scopes. Thread-safe.
class NodeRanges {
 public:
  /// The number of the next node that the calling thread creates.
  static uint64_t next_node();
  /// Adds a scope that ends now on the calling thread and began when `first` was the next node.
  void add(uint64_t first);
  bool has(const torch::autograd::Node& node) const;

 private:
  struct Range {
    uint64_t thread, first, end;
  };
  mutable std::mutex mutex_;
  std::deque<Range> ranges_;
};

/// Nodes from scopes of `disable_casts`.
NodeRanges& nodes_without_casts();
/// Nodes from handles' forward passes.
NodeRanges& nodes_of_handles();
/// Nodes of custom functions whose forward uses `custom_fwd`.
NodeRanges& nodes_with_custom_fwd();

/// Finds custom `torch::autograd::Function`s that get 16-bit tensors from the casts of O1 and O4. Code that reads such memory
/// as `float` computes wrong numbers, and calls no operator that could be cast. Sees only what autograd recorded: inputs that
/// need gradients. Reads host data only. Thread-safe.
class CustomFunctions {
 public:
  /// Searches a loss's graph at the first block of `loss_id`, and warns once per class.
  void look(const at::Tensor& loss, int64_t loss_id);

 private:
  std::mutex mutex_;
  std::set<int64_t> losses_;
  std::set<std::string> classes_;
};

}  // namespace apex::amp::detail
