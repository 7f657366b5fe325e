#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace apex::amp_C::detail {

/// A list for an update that computes in float32: the tensors themselves, or float32 copies of float64 ones.
class Float32List {
 public:
  explicit Float32List(const std::vector<at::Tensor>& tensors);

  at::TensorList tensors() const { return copies_.empty() ? tensors_ : copies_; }

  /// Gives the values of copies to the tensors, unless `stop`, if defined, is not 0.
  void write_back(const at::Tensor& stop = {}) const;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<at::Tensor> copies_;
};

}  // namespace apex::amp_C::detail
