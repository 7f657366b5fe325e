#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/options/activation.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/options/upsampling.h>

/// Functions that Apex casts by name and that LibTorch makes of several operators, so that the cast engine cannot see them
/// whole: `torch::nn::functional`'s by the same names and options, run in FP32 from end to end where O1 or O4 is in force.
namespace apex::amp::functional {

/// Squares of 16-bit activations leave the range of FP16 from 256 on: LibTorch's own would divide by infinity.
at::Tensor local_response_norm(const at::Tensor& input, const torch::nn::functional::LocalResponseNormFuncOptions& options);
/// The loss of that name, of logits and targets of shape [N, C].
at::Tensor multilabel_soft_margin_loss(const at::Tensor& input, const at::Tensor& target,
                                       const torch::nn::functional::MultilabelSoftMarginLossFuncOptions& options = {});
/// All modes, `area` included: LibTorch's is an adaptive average pool, which stays in the type of its input.
at::Tensor interpolate(const at::Tensor& input, const torch::nn::functional::InterpolateFuncOptions& options);
/// The input over its norm along a dimension.
at::Tensor normalize(const at::Tensor& input, torch::nn::functional::NormalizeFuncOptions options = {});
/// softmax of -input.
at::Tensor softmin(const at::Tensor& input, const torch::nn::functional::SoftminFuncOptions& options);

}  // namespace apex::amp::functional

namespace apex::amp {

/// `tensor.cpu()`, in FP32 for a 16-bit tensor where O1 or O4 is in force. Apex patches `Tensor.cpu` itself; a copy that
/// quietly changes the type is not something to do to every `Tensor::to`, so that here it is a function.
at::Tensor cpu(const at::Tensor& tensor);

}  // namespace apex::amp
