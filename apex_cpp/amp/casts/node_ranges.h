#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

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

}  // namespace apex::amp::detail
