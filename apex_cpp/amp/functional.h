#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/options/activation.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/options/upsampling.h>

/// Functions that Apex casts as a whole, but that LibTorch composes of several operators, which the cast engine would cast one
/// by one. These have the names and options of `torch::nn::functional` and run entirely in FP32 at O1 and O4.
namespace apex::amp::functional {

/// In FP16 the squares of activations above 256 overflow, and LibTorch's function would divide by infinity.
at::Tensor local_response_norm(const at::Tensor& input, const torch::nn::functional::LocalResponseNormFuncOptions& options);
/// The multi-label soft margin loss of logits and targets of shape [N, C].
at::Tensor multilabel_soft_margin_loss(const at::Tensor& input, const at::Tensor& target,
                                       const torch::nn::functional::MultilabelSoftMarginLossFuncOptions& options = {});
/// All modes, including `area`, which LibTorch runs as an adaptive average pool in the type of its input.
at::Tensor interpolate(const at::Tensor& input, const torch::nn::functional::InterpolateFuncOptions& options);
/// `input` divided by its norm along a dimension.
at::Tensor normalize(const at::Tensor& input, torch::nn::functional::NormalizeFuncOptions options = {});
/// softmax of -input.
at::Tensor softmin(const at::Tensor& input, const torch::nn::functional::SoftminFuncOptions& options);

}  // namespace apex::amp::functional

namespace apex::amp {

/// `tensor.cpu()`; converts a floating-point tensor, also one in FP64, to FP32 at O1 and O4. Apex patches `Tensor.cpu`
/// itself; here it is a separate function, so that `Tensor::to` never changes a type implicitly.
at::Tensor cpu(const at::Tensor& tensor);

}  // namespace apex::amp
