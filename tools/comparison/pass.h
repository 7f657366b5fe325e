#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "config/config.h"
#include "data/dataset.h"

namespace comparison {

/// A tensor of a pass, with the name of the layer or parameter it belongs to. Gradients are as the backward pass left them,
/// multiplied by the loss scale, `value` without that.
struct PassTensor {
  std::string name, layer_type;
  at::Tensor value, scaled;
};

/// What a forward and a backward pass of one batch made.
struct Pass {
  std::vector<PassTensor> outputs;           // of each layer, in order
  std::vector<PassTensor> gradients;         // of those outputs, but of layers before the first parameter
  std::vector<PassTensor> weight_gradients;  // of each parameter, in order
};

/// What is the same for passes that are compared: data and weights.
struct PassSetup {
  const train::Config& config;
  const train::DataSplit& data;
  std::string weights;  // a file of amp::save_safetensors; empty: the weights that the seed gives
  at::Device device;
};

/// By what a pass is made: a level of amp, or torch.amp.
struct Way {
  /* implicit */ Way(apex::amp::OptLevel of_amp, std::optional<train::TorchAmpConfig> of_torch = std::nullopt)
      : level(std::move(of_amp)), torch_amp(std::move(of_torch)) {}

  apex::amp::OptLevel level;
  std::optional<train::TorchAmpConfig> torch_amp;
};

/// The first batch of the training set through the config's network, in training mode except for dropout, which would be
/// another one each time. A loss scale other than `loss_scale` is not used. Where `trace` is not empty, that file gets the
/// operator calls of such a pass. Leaves no level in force.
Pass make_pass(const PassSetup& setup, const Way& way, double loss_scale, const std::string& trace = "");

}  // namespace comparison
