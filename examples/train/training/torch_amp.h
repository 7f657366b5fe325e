#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <apex_cpp/amp.h>

#include "config/config.h"

namespace train {

/// What a program has that was written for torch.amp: autocast, and a GradScaler.
class TorchAmp {
 public:
  TorchAmp(const TorchAmpConfig& config, at::Device device);

  /// The casts around a forward pass, for as long as the guard lives; a guard that casts nothing where there are none.
  apex::amp::autocast autocast() const;
  /// Null where losses are not scaled.
  apex::amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  /// That the next step will be made with.
  double loss_scale() const { return scaler_ ? scaler_->get_scale() : 1.0; }

 private:
  c10::DeviceType device_type_;
  std::optional<c10::ScalarType> dtype_;
  std::optional<apex::amp::GradScaler> scaler_;
};

/// What a GradScaler's update did, from the scales before and after it: it halves after an Inf or NaN alone.
std::optional<apex::amp::ScaleEvent> scale_event(double before, double after);
/// What became of the step of that update: of one that was skipped, the first parameter of `net` with Inf or NaN in its
/// gradient, which is still there.
apex::amp::StepResult result_of_step(const torch::nn::Module& net, double loss, double before, double after);

}  // namespace train
