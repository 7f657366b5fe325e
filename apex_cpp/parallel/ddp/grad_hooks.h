#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <map>

namespace apex::parallel::detail {

/// Calls back whenever a backward pass has added to the gradient of a parameter, on the thread that did. The calls end with
/// this object.
class GradHooks {
 public:
  using Call = std::function<void(size_t index)>;

  GradHooks() = default;
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;
  ~GradHooks();

  /// `call(index)` for the gradient of `param`, which needs one.
  void add(const at::Tensor& param, size_t index, const Call& call);
  bool has(size_t index) const { return hooks_.count(index) != 0; }
  /// Whether backward passes still come by: not once `param`, which was given with this index, was converted or moved.
  bool hears(const at::Tensor& param, size_t index) const;

 private:
  struct Hook {
    decltype(torch::autograd::Edge::function) accumulator;  // which the parameter itself only refers to weakly
    uintptr_t key;
  };
  std::map<size_t, Hook> hooks_;
};

}  // namespace apex::parallel::detail
