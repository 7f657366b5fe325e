#pragma once
// apex.fused_dense for LibTorch.

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace apex::fused_dense {

// Both modules use LibTorch's linear operator, which adds the bias. Any device and floating-point dtype. At O1 and O4 a module
// runs in 16 bits as one function, whose GELU follows no list of the program. At O2, O3, O5 and O6 its parameters have 16 bits.
// Weights [out, in] and biases [out] are initialized as in `torch::nn::Linear`; Apex leaves them uninitialized. Errors:
// ValueError for sizes that are not positive; RuntimeError for an input whose last dimension is not `in_features`.

/// `x weight^T + bias`, for an input of shape [..., in_features]. Apex: `apex.fused_dense.FusedDense`.
class FusedDenseImpl : public torch::nn::Cloneable<FusedDenseImpl> {
 public:
  FusedDenseImpl(int64_t in_features, int64_t out_features, bool bias = true);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  int64_t in_features, out_features;
  at::Tensor weight, bias;  ///< `bias` is undefined in a module without bias

 private:
  bool has_bias_;
};
TORCH_MODULE(FusedDense);

/// `gelu(x weight1^T + bias1) weight2^T + bias2`, with the tanh approximation of GELU, as in cuBLASLt and so in Apex.
/// Errors: ValueError for `bias` = false, as in Apex. Apex: `apex.fused_dense.FusedDenseGeluDense`.
class FusedDenseGeluDenseImpl : public torch::nn::Cloneable<FusedDenseGeluDenseImpl> {
 public:
  FusedDenseGeluDenseImpl(int64_t in_features, int64_t intermediate_features, int64_t out_features, bool bias = true);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  int64_t in_features, intermediate_features, out_features;
  at::Tensor weight1, bias1, weight2, bias2;
};
TORCH_MODULE(FusedDenseGeluDense);

}  // namespace apex::fused_dense
