#pragma once
// IWYU pragma: private, include <apex_cpp/optimizers/fused_adam.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace apex::optimizers::detail {

/// Which of Adam's two moments: the running mean of gradients, or of their squares.
enum class Moment { mean, square };

/// A moment of a parameter in 8 bits (kernels/rules/quantized.h, which says how it rounds). On any device, without
/// synchronisation.
class CodedMoment {
 public:
  CodedMoment() = default;
  /// Zeros for a parameter.
  explicit CodedMoment(const at::Tensor& param);
  /// The codes nearest to float32 values, in their memory order. Values that come from codes get these codes back.
  CodedMoment(const at::Tensor& values, Moment moment);

  bool defined() const { return codes_.defined(); }
  int64_t nbytes() const { return defined() ? codes_.numel() : 0; }
  /// The parameter's shape.
  at::IntArrayRef sizes() const { return sizes_; }
  /// The float32 values, in the shape and the memory order of the parameter.
  at::Tensor values(Moment moment) const;
  /// What the kernels take: uint8, 33 bytes for each group of 32 elements. Moves the codes to the parameter's device and memory
  /// order if it has changed since.
  const at::Tensor& codes_for(const at::Tensor& param, Moment moment);

 private:
  at::Tensor codes_;
  std::vector<int64_t> sizes_, strides_;
};

}  // namespace apex::optimizers::detail
