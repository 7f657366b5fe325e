#pragma once
// apex.mlp for LibTorch.

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>
#include <vector>

namespace apex::mlp {

/// Linear layers in sequence, each followed by the activation, the last layer too: {480, 1024, 10} makes two layers, from 480
/// to 1024 features and from 1024 to 10. Parameters: `weight_0`, `weight_1`, ... of shape [out, in] and, with `bias`, `bias_0`,
/// ... of shape [out]. They are normally distributed with standard deviation sqrt(2 / (in + out)) and sqrt(1 / out).
///
/// Uses LibTorch's linear operator, which adds the bias. The activation runs in place, so that each layer keeps one tensor for
/// the backward pass. Any device and floating-point dtype. At O1 and O4 the whole module runs in 16 bits as one function. At
/// O2, O3, O5 and O6 its parameters have 16 bits. Errors: TypeError for an activation other than "none", "relu" and "sigmoid";
/// ValueError for fewer than two sizes, or a size that is not positive; RuntimeError for an input whose last dimension is not
/// the first size. Apex: `apex.mlp.MLP`, which takes inputs of two dimensions only.
class MLPImpl : public torch::nn::Cloneable<MLPImpl> {
 public:
  explicit MLPImpl(std::vector<int64_t> mlp_sizes, bool bias = true, std::string activation = "relu");

  void reset() override;
  /// Initializes the parameters again.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// `input`: [..., first size]. Returns [..., last size].
  at::Tensor forward(const at::Tensor& input);

  std::vector<int64_t> mlp_sizes;
  bool bias;
  std::string activation;
  std::vector<at::Tensor> weights, biases;
};
TORCH_MODULE(MLP);

}  // namespace apex::mlp
