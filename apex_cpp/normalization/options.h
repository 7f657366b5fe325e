#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace apex::normalization {

/// Options of `FusedLayerNorm` and `FusedRMSNorm`. The shape may be given as one number.
///
/// ```
/// FusedLayerNorm norm(FusedLayerNormOptions({32, 16}).eps(1e-6).memory_efficient(true));
/// ```
struct FusedNormOptions {
  /* implicit */ FusedNormOptions(std::vector<int64_t> normalized_shape) : normalized_shape_(std::move(normalized_shape)) {}
  /* implicit */ FusedNormOptions(int64_t normalized_size) : normalized_shape_({normalized_size}) {}

  /// The last dimensions of the input, over which it is normalized.
  TORCH_ARG(std::vector<int64_t>, normalized_shape);
  /// Added to the variance (to the mean square for RMS) before its root is taken. Not negative.
  TORCH_ARG(double, eps) = 1e-5;
  /// Whether there is a weight, which starts as ones, and for layer normalisation a bias, which starts as zeros.
  TORCH_ARG(bool, elementwise_affine) = true;
  /// Whether the output is kept for the backward pass in place of the input and the mean: where the layers behind keep it too,
  /// that saves a tensor. Normalized values are then recovered from it, less exactly in 16 bits; where |weight| < eps, they are
  /// taken as if it were eps with weight's sign.
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
  /// Not to be set: `true` brings a warning, `false` an error from the module's constructor, as in Apex.
  TORCH_ARG(std::optional<bool>, elementwise_affine) = std::nullopt;
};

using MixedFusedLayerNormOptions = MixedFusedNormOptions;
using MixedFusedRMSNormOptions = MixedFusedNormOptions;

}  // namespace apex::normalization
