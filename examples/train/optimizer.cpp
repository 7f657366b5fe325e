#include "optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace train {
namespace {

namespace optim = torch::optim;

// Adam and AdamW have the same options under two names.
template <class Options>
Options adam_options(const OptimizerConfig& config) {
  return Options(config.lr)
      .betas({config.beta1, config.beta2})
      .eps(config.eps)
      .weight_decay(config.weight_decay)
      .amsgrad(config.amsgrad);
}

optim::SGDOptions sgd_options(const OptimizerConfig& config) {
  return optim::SGDOptions(config.lr)
      .momentum(config.momentum)
      .dampening(config.dampening)
      .weight_decay(config.weight_decay)
      .nesterov(config.nesterov);
}

optim::RMSpropOptions rmsprop_options(const OptimizerConfig& config) {
  return optim::RMSpropOptions(config.lr)
      .alpha(config.alpha)
      .eps(config.eps)
      .weight_decay(config.weight_decay)
      .momentum(config.momentum)
      .centered(config.centered);
}

optim::AdagradOptions adagrad_options(const OptimizerConfig& config) {
  return optim::AdagradOptions(config.lr).lr_decay(config.lr_decay).weight_decay(config.weight_decay).eps(config.eps);
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<torch::Tensor> parameters) {
  if (config.type == "Adam") {
    return std::make_unique<optim::Adam>(std::move(parameters), adam_options<optim::AdamOptions>(config));
  }
  if (config.type == "AdamW") {
    return std::make_unique<optim::AdamW>(std::move(parameters), adam_options<optim::AdamWOptions>(config));
  }
  if (config.type == "RMSprop") {
    return std::make_unique<optim::RMSprop>(std::move(parameters), rmsprop_options(config));
  }
  if (config.type == "Adagrad") {
    return std::make_unique<optim::Adagrad>(std::move(parameters), adagrad_options(config));
  }
  return std::make_unique<optim::SGD>(std::move(parameters), sgd_options(config));
}

void set_learning_rate(optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
}

}  // namespace train
