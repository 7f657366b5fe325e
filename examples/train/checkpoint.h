#pragma once

#include <cstdint>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace train {

/// How far a run has come. The data order and the learning rate follow from it and the config.
struct Position {
  int64_t epoch = 0;  // epochs done
  int64_t step = 0;   // steps done, over all epochs
  int64_t skipped = 0;
};

/// Writes what the rest of the run depends on: the network in FP32, the optimizer with its master weights, the loss scalers,
/// the random number generators and the position. The file at `path` is replaced as a whole or not at all.
void save_checkpoint(const std::string& path, const torch::nn::Module& net, const torch::optim::Optimizer& optimizer,
                     at::Device device, const Position& position);

/// Puts a checkpoint's state into handles that `amp::initialize` returned at the same opt level. Training on gives bitwise the
/// losses of a run that was never interrupted. Throws UserError where the file is no such checkpoint.
Position load_checkpoint(const std::string& path, torch::nn::Module& net, torch::optim::Optimizer& optimizer,
                         at::Device device);

}  // namespace train
