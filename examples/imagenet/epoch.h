#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>

#include "image_folder.h"
#include "options.h"

/// The rank of this process, the number of processes, and the device.
struct Place {
  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
};

using Forward = std::function<at::Tensor(const at::Tensor& images)>;

/// One epoch of training or validation on this process's share of the images.
class Epoch {
 public:
  Epoch(const Options& options, const Place& place, int64_t number) : options_(options), place_(place), number_(number) {}

  void train(const std::shared_ptr<const ImageFiles>& images, const Forward& forward, torch::optim::Optimizer& optimizer) const;
  /// Top-1 accuracy in percent, over all processes.
  double validate(const std::shared_ptr<const ImageFiles>& images, const Forward& forward) const;

 private:
  double learning_rate(int64_t batch, int64_t batches) const;
  at::Tensor normalized(const at::Tensor& pixels) const;

  const Options& options_;
  const Place& place_;
  int64_t number_;
};
