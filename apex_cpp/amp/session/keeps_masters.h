#pragma once

#include <ATen/core/Tensor.h>

namespace apex::amp::detail {

/// What a session knows of one of its optimizers: the masters that it keeps.
class KeepsMasters {
 public:
  virtual ~KeepsMasters() = default;
  /// The FP32 master of a model's parameter; undefined if it has none here.
  virtual at::Tensor master_of(const at::Tensor& param) const = 0;
  /// The program wrote to weights in ways that leave no trace.
  virtual void weights_were_written() = 0;
  /// A later `initialize` gave the model's parameters to another optimizer.
  virtual void retire() = 0;
};

}  // namespace apex::amp::detail
