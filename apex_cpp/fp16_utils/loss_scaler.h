#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

// The loss scalers from before `amp`. Unlike with amp::LossScaler, the program checks for overflow itself. The dynamic scale
// starts at 2^32, has a minimum of 1 and no maximum. Both classes warn that they are deprecated, as in Apex.
namespace apex::fp16_utils {

/// A static loss scale. Apex: `fp16_utils.LossScaler` (FP16S-01).
class LossScaler {
 public:
  explicit LossScaler(double scale = 1.0);

  double loss_scale() const { return scale_; }
  bool has_overflow(const std::vector<at::Tensor>&) const { return false; }
  void update_scale(bool) {}
  /// gradient * loss_scale.
  at::Tensor scale_gradient(const at::Tensor& gradient) const { return gradient.mul(scale_); }
  /// Backward of loss * loss_scale.
  void backward(const at::Tensor& loss, std::optional<bool> retain_graph = std::nullopt) const;

 private:
  double scale_;
};

/// A loss scale that shrinks on overflow and grows after `scale_window` updates without overflow. Apex:
/// `fp16_utils.DynamicLossScaler` (FP16S-02).
class DynamicLossScaler {
 public:
  /// Errors: ValueError unless init_scale > 0, scale_factor > 1 and scale_window > 0.
  explicit DynamicLossScaler(double init_scale = 4294967296.0, double scale_factor = 2.0, int64_t scale_window = 1000);

  double loss_scale() const { return scale_; }
  /// Whether any parameter has a gradient whose sum in float32 is Inf or NaN. Synchronises once per gradient, until it finds
  /// one.
  bool has_overflow(const std::vector<at::Tensor>& params) const;
  /// The same test for one tensor.
  static bool has_inf_or_nan(const at::Tensor& tensor);
  /// On overflow, divides the scale by the factor, down to 1 at most. Otherwise multiplies it every `scale_window` updates
  /// since the last overflow.
  void update_scale(bool overflow);
  /// gradient * loss_scale.
  at::Tensor scale_gradient(const at::Tensor& gradient) const { return gradient.mul(scale_); }
  /// Backward of loss * loss_scale.
  void backward(const at::Tensor& loss, std::optional<bool> retain_graph = std::nullopt) const;

 private:
  double scale_;
  double scale_factor_;
  int64_t scale_window_;
  int64_t updates_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace apex::fp16_utils
