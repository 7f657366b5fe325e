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

/// Which nodes of autograd's graphs were made within scopes of one kind, by their numbers, which autograd counts on each
/// thread: a node may be asked for what held when it was made. Remembers the newest scopes. From any thread.
class NodeRanges {
 public:
  /// The number of the next node that the calling thread makes.
  static uint64_t next_node();
  /// A scope on the calling thread ends, which began when the next node was `first`.
  void add(uint64_t first);
  bool has(const torch::autograd::Node& node) const;

 private:
  struct Range {
    uint64_t thread, first, end;
  };
  mutable std::mutex mutex_;
  std::deque<Range> ranges_;
};

/// Of scopes of `disable_casts`.
NodeRanges& nodes_without_casts();
/// Of handles' forward passes.
NodeRanges& nodes_of_handles();
/// Of functions of the program's own whose forward is written with `custom_fwd`.
NodeRanges& nodes_with_custom_fwd();

/// Whether the node is a C++ `torch::autograd::Function`'s, `torch::autograd::CppNode<Function>`.
bool is_custom_function(const torch::autograd::Node& node);

/// Looks for the program's own `torch::autograd::Function`s that the casts of O1 and O4 give 16-bit tensors: code that reads
/// such memory as `float` computes wrong numbers, and no operator comes by that could be cast. Finds what autograd recorded:
/// inputs that need gradients. Host data alone; from any thread.
class CustomFunctions {
 public:
  /// Goes through the graph of a loss when the first block of `loss_id` begins, and warns of each class once.
  void look(const at::Tensor& loss, int64_t loss_id);

 private:
  std::mutex mutex_;
  std::set<int64_t> losses_;
  std::set<std::string> classes_;
};

}  // namespace apex::amp::detail
