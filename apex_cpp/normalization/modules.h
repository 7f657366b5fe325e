#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

namespace apex::normalization {

/// Options of `FusedLayerNorm` and `FusedRMSNorm`. One number stands for a shape with one dimension.
///
/// ```
/// FusedLayerNorm norm(FusedLayerNormOptions({32, 16}).eps(1e-6).memory_efficient(true));
/// ```
struct FusedNormOptions {
  /* implicit */ FusedNormOptions(std::vector<int64_t> normalized_shape) : normalized_shape_(std::move(normalized_shape)) {}
  /* implicit */ FusedNormOptions(int64_t normalized_size) : normalized_shape_({normalized_size}) {}

  /// The shape of the last dimensions of the input, over which it is normalized.
  TORCH_ARG(std::vector<int64_t>, normalized_shape);
  /// Added to the variance (for RMS: to the mean square) before the square root. Not negative.
  TORCH_ARG(double, eps) = 1e-5;
  /// Whether there is a weight, initialized to ones, and for layer normalisation a bias, initialized to zeros.
  TORCH_ARG(bool, elementwise_affine) = true;
  /// Whether the backward pass uses the output in place of the input and the mean. This saves a tensor if the next layers keep
  /// the output too. The backward pass recovers the normalized values from the output, less exactly in 16 bits. A weight with
  /// |weight| < eps counts as eps with the sign of the weight: a weight of 0 gets no gradient, so do not initialize it to
  /// zeros.
  TORCH_ARG(bool, memory_efficient) = false;
};

using FusedLayerNormOptions = FusedNormOptions;
using FusedRMSNormOptions = FusedNormOptions;

/// Options of `MixedFusedLayerNorm` and `MixedFusedRMSNorm`, which always have a weight.
struct MixedFusedNormOptions {
  /* implicit */ MixedFusedNormOptions(std::vector<int64_t> normalized_shape)
      : normalized_shape_(std::move(normalized_shape)) {}
  /* implicit */ MixedFusedNormOptions(int64_t normalized_size) : normalized_shape_({normalized_size}) {}

  TORCH_ARG(std::vector<int64_t>, normalized_shape);
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(bool, memory_efficient) = false;
  /// Do not set it: `true` gives a warning, `false` an error from the module's constructor, as in Apex.
  TORCH_ARG(std::optional<bool>, elementwise_affine) = std::nullopt;
};

using MixedFusedLayerNormOptions = MixedFusedNormOptions;
using MixedFusedRMSNormOptions = MixedFusedNormOptions;

namespace detail {

/// The base of the modules. `weight` and `bias` are undefined without elementwise_affine; RMS modules have no `bias`.
template <class Derived, class Options>
class NormModule : public torch::nn::Cloneable<Derived> {
 public:
  explicit NormModule(Options options_) : options(std::move(options_)) { reset(); }

  void reset() override;
  /// Sets the weight to ones and the bias to zeros.
  void reset_parameters();
  /// Prints name, normalized_shape, eps and elementwise_affine.
  void pretty_print(std::ostream& stream) const override;

  Options options;
  at::Tensor weight, bias;
};

}  // namespace detail

/// Layer normalisation: `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimensions.
/// Input, dtypes, devices and errors as in `fused_layer_norm_affine`, or `fused_layer_norm` without elementwise_affine.
/// Apex: `apex.normalization.FusedLayerNorm`, which uses PyTorch for CPU tensors; apex_cpp has CPU kernels.
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

/// `FusedLayerNorm` whose output has the dtype of its parameters, for input of any dtype (see
/// `mixed_dtype_fused_layer_norm_affine`).
/// Errors: RuntimeError for elementwise_affine(false); elementwise_affine(true) gives a warning.
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
