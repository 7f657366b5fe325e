#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory_watch.h"
#include "training/observer.h"

namespace comparison {

/// What a training run is measured by: how long each step's forward pass, backward pass and optimizer take, what memory one
/// step takes, and of which dtypes parameters, gradients and masters are. A GPU is waited for at each mark.
class Recorder : public train::Observer {
 public:
  explicit Recorder(at::Device device) : device_(device), memory_(device) {}

  void step_begins() override;
  void loss_is_there() override;
  void gradients_are_there(const torch::optim::Optimizer& optimizer) override;
  void step_ends() override;
  void training_ends(train::Network& net, torch::optim::Optimizer& optimizer, double loss_scale) override;

  /// Where the network's weights are written when training ends, as amp::save_safetensors has them, masters in their places.
  void keep_weights(std::string path) { weights_ = std::move(path); }
  /// That the last step was made with, or the next would be.
  double loss_scale() const { return loss_scale_; }

  /// Milliseconds: the medians of the steps behind the first ones.
  struct Times {
    int64_t step = 0;
    double forward = 0, backward = 0, optimizer = 0;
  };
  Times median_times() const;

  /// times.csv, memory.csv and parameters.csv.
  std::string times() const;
  std::string memory() const;
  const std::string& parameters() const { return parameters_; }

 private:
  using Clock = std::chrono::steady_clock;

  double milliseconds_since_mark();

  at::Device device_;
  Clock::time_point mark_;
  int64_t step_ = 0;  // from 1
  Times now_;
  std::vector<Times> times_;
  MemoryWatch memory_;
  std::vector<std::string> grad_dtypes_;  // of what the optimizer steps, in order
  std::string parameters_, weights_;
  double loss_scale_ = 1;
};

}  // namespace comparison
