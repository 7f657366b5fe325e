#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace apex::amp::detail {

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
