#include <apex_cpp/amp/functional.h>

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/functional/upsampling.h>

#include <apex_cpp/amp/casts.h>

namespace apex::amp {
namespace functional {
namespace F = torch::nn::functional;

at::Tensor local_response_norm(const at::Tensor& input, const F::LocalResponseNormFuncOptions& options) {
  return float_function(F::local_response_norm)(input, options);
}

at::Tensor multilabel_soft_margin_loss(const at::Tensor& input, const at::Tensor& target,
                                       const F::MultilabelSoftMarginLossFuncOptions& options) {
  return float_function(F::multilabel_soft_margin_loss)(input, target, options);
}

at::Tensor interpolate(const at::Tensor& input, const F::InterpolateFuncOptions& options) {
  return float_function(F::interpolate)(input, options);
}

at::Tensor normalize(const at::Tensor& input, F::NormalizeFuncOptions options) {
  return float_function(F::normalize)(input, std::move(options));
}

at::Tensor softmin(const at::Tensor& input, const F::SoftminFuncOptions& options) {
  return float_function(F::softmin)(input, options);
}

}  // namespace functional

at::Tensor cpu(const at::Tensor& tensor) {
  return float_function([](const at::Tensor& value) { return value.cpu(); })(tensor);
}

}  // namespace apex::amp
