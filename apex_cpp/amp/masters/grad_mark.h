#pragma once

#include <apex_cpp/amp/tensors/tensor_trace.h>

namespace apex::amp::detail {

/// What a gradient was when amp last looked at it, to tell afterwards whether the program has written to it since, or has put
/// another in its place.
///
/// Versions show most writes. Those through `tensor.data()`, as `torch::nn::utils::clip_grad_norm_` makes, show because the
/// mark shares the gradient's memory copy-on-write: whoever asks for it for writing gets memory of the gradient's own, and the
/// mark keeps the values of before. Nothing is copied unless somebody does, and nothing synchronises but `was_changed`. On a
/// CUDA stream other than the default one no memory is shared, and writes through `tensor.data()` do not show.
class GradMark {
 public:
  GradMark() = default;
  explicit GradMark(const at::Tensor& grad);

  /// Whether there was a gradient.
  bool defined() const { return defined_; }
  bool same_memory(const at::Tensor& grad) const { return trace_.same_memory(grad); }
  /// Whether nobody has written to it, or seems to have: who asks for memory for writing may only read it.
  bool still(const at::Tensor& grad) const;
  /// Whether `grad` has values that the marked one has not. Zeros count as none: a zero_grad writes them. Synchronises unless
  /// `still`.
  bool was_changed(const at::Tensor& grad) const;
  /// Whether there was a gradient, and `grad` is none or has become zeros. Synchronises as `was_changed`.
  bool was_dropped(const at::Tensor& grad) const;
  /// Lets go of the values, so that the memory goes with the gradient.
  void forget_values() { values_.reset(); }

 private:
  bool has_values_of(const at::Tensor& grad) const;

  bool defined_ = false;
  bool shares_memory_ = false;
  TensorTrace trace_;
  c10::intrusive_ptr<c10::StorageImpl> values_;
};

}  // namespace apex::amp::detail
