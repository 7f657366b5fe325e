#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <utility>

#include <apex_cpp/normalization/options.h>

namespace apex::normalization {

namespace detail {

/// What the modules share. `weight`, and `bias` where there is one, are undefined without elementwise_affine.
template <class Derived, class Options>
class NormModule : public torch::nn::Cloneable<Derived> {
 public:
  explicit NormModule(Options options_) : options(std::move(options_)) { reset(); }

  void reset() override;
  /// Weight to ones, bias to zeros.
  void reset_parameters();
  /// Prints name, normalized_shape, eps and elementwise_affine.
  void pretty_print(std::ostream& stream) const override;

  Options options;
  at::Tensor weight, bias;
};

}  // namespace detail

/// Layer normalisation: `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimensions.
/// Input, dtypes, devices and errors as in `fused_layer_norm_affine`, or `fused_layer_norm` without elementwise_affine.
/// Apex: `apex.normalization.FusedLayerNorm`, which leaves CPU tensors to PyTorch; here they have kernels too.
class FusedLayerNormImpl : public detail::NormModule<FusedLayerNormImpl, FusedLayerNormOptions> {
 public:
  using NormModule::NormModule;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(FusedLayerNorm);

/// RMS normalisation: `x / sqrt(mean(x^2) + eps) * weight` over the last dimensions. No bias.
/// Apex: `apex.normalization.FusedRMSNorm`.
class FusedRMSNormImpl : public detail::NormModule<FusedRMSNormImpl, FusedRMSNormOptions> {
 public:
  using NormModule::NormModule;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(FusedRMSNorm);

/// `FusedLayerNorm` whose output has the dtype of its parameters, whatever the input's (see
/// `mixed_dtype_fused_layer_norm_affine`).
/// Errors: RuntimeError for elementwise_affine(false); elementwise_affine(true) is a warning.
/// Apex: `apex.normalization.MixedFusedLayerNorm`.
class MixedFusedLayerNormImpl : public detail::NormModule<MixedFusedLayerNormImpl, MixedFusedLayerNormOptions> {
 public:
  using NormModule::NormModule;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(MixedFusedLayerNorm);

/// `FusedRMSNorm` whose output has the dtype of its weight. Apex: `apex.normalization.MixedFusedRMSNorm`.
class MixedFusedRMSNormImpl : public detail::NormModule<MixedFusedRMSNormImpl, MixedFusedRMSNormOptions> {
 public:
  using NormModule::NormModule;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(MixedFusedRMSNorm);

}  // namespace apex::normalization
