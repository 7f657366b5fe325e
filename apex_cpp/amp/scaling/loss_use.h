#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

namespace apex::amp::detail {

/// Sees whether a loss and its scaled copy are differentiated, by hooks on both that hold nothing of their graphs: of the whole
/// backward pass or of `torch::autograd::grad`, on whatever thread it runs. A loss that needs no gradient is not watched.
class LossUse {
 public:
  LossUse() = default;
  LossUse(const at::Tensor& loss, const at::Tensor& scaled);
  LossUse(LossUse&&) = default;
  LossUse& operator=(LossUse&&) = default;
  ~LossUse() { stop(); }

  /// Errors: RuntimeError with the remedy if the loss was differentiated and the scaled one was not, or if neither was and
  /// nobody made gradients (`has_grads`) in another way.
  void check(bool has_grads) const;
  /// Takes the hook off the loss.
  void stop();

 private:
  struct Seen {
    std::atomic<bool> loss{false}, scaled{false};
  };
  at::Tensor loss_;
  unsigned hook_ = 0;
  std::shared_ptr<Seen> seen_;
};

}  // namespace apex::amp::detail
