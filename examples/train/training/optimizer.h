#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "config/config.h"

namespace train {

/// The optimizer of LibTorch, apex::optimizers or apex::parallel that the config names, over `parameters`. Throws UserError for
/// one that needs several processes where there is one, and for Muon, which does not train alone.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<torch::Tensor> parameters);

/// The optimizers that the config names, over the parameters of `model`: one, or FusedAdam and then Muon, which takes the
/// matrices of hidden layers: all 2-D parameters but the last. Throws UserError as `make_optimizer`, and for Muon over a model
/// without such matrices.
std::vector<std::unique_ptr<torch::optim::Optimizer>> make_optimizers(const OptimizerConfig& config,
                                                                      const torch::nn::Module& model);

/// Puts a schedule-free optimizer, whose parameters in training differ from those of an evaluation, into the mode. No effect on
/// the rest.
void set_training(torch::optim::Optimizer& optimizer, bool training);

/// Sets the learning rate of every parameter group.
void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

}  // namespace train
