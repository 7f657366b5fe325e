#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "config/config.h"

namespace train {

/// The optimizer of LibTorch, apex::optimizers or apex::parallel that the config names, over `parameters`. Throws UserError for
/// one that needs several processes where there is one.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<torch::Tensor> parameters);

/// Sets the learning rate of every parameter group.
void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

}  // namespace train
