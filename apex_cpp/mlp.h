#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>
#include <vector>

namespace apex::mlp {

/// Linear layers one after the other, each followed by the activation, the last one too: {480, 1024, 10} makes two, from 480 to
/// 1024 and from there to 10 features. Parameters: `weight_0`, `weight_1`, ... of shape [out, in] and, with `bias`, `bias_0`,
/// ... of shape [out], normally distributed with standard deviation sqrt(2 / (in + out)) and sqrt(1 / out).
///
/// By LibTorch's own products, which add the bias; the activation is written over what it is taken of, so that each layer keeps
/// one tensor for the backward pass. Any device and floating-point dtype. At O1 and O4 it runs in 16 bits as one function; at
/// O2, O3 and O5 its parameters have 16 bits. Errors: TypeError for an activation other than "none", "relu" and "sigmoid";
/// ValueError for less than two sizes or one that is not positive; RuntimeError for an input whose last dimension is not the
/// first size. Apex: `apex.mlp.MLP`, which takes inputs of two dimensions.
class MLPImpl : public torch::nn::Cloneable<MLPImpl> {
 public:
  explicit MLPImpl(std::vector<int64_t> mlp_sizes, bool bias = true, std::string activation = "relu");

  void reset() override;
  /// Draws the parameters again.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// `input`: [..., first size]. Answers [..., last size].
  at::Tensor forward(const at::Tensor& input);

  std::vector<int64_t> mlp_sizes;
  bool bias;
  std::string activation;
  std::vector<at::Tensor> weights, biases;
};
TORCH_MODULE(MLP);

}  // namespace apex::mlp

// apex.mlp for LibTorch.
