#include "optimizer.h"

#include <apex_cpp/optimizers.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace train {
namespace {

namespace optim = torch::optim;
namespace fused = apex::optimizers;
using Parameters = std::vector<torch::Tensor>;

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

template <class Options>
Options with_moments(const OptimizerConfig& config) {
  return Options(config.lr)
      .betas({config.beta1, config.beta2})
      .eps(config.eps)
      .weight_decay(config.weight_decay)
      .materialize_master_grads(config.materialize_master_grads);
}

template <class Options>
Options lamb_options(const OptimizerConfig& config) {
  return with_moments<Options>(config).adam_w_mode(config.adam_w_mode).max_grad_norm(config.max_grad_norm);
}

fused::FusedSGDOptions fused_sgd_options(const OptimizerConfig& config) {
  return fused::FusedSGDOptions(config.lr)
      .momentum(config.momentum)
      .dampening(config.dampening)
      .weight_decay(config.weight_decay)
      .nesterov(config.nesterov)
      .materialize_master_grads(config.materialize_master_grads);
}

fused::FusedAdagradOptions fused_adagrad_options(const OptimizerConfig& config) {
  return fused::FusedAdagradOptions(config.lr)
      .weight_decay(config.weight_decay)
      .eps(config.eps)
      .materialize_master_grads(config.materialize_master_grads);
}

std::unique_ptr<optim::Optimizer> make_fused(const OptimizerConfig& config, Parameters parameters) {
  if (config.type == "FusedAdam") {
    return std::make_unique<fused::FusedAdam>(std::move(parameters),
                                              with_moments<fused::FusedAdamOptions>(config).adam_w_mode(config.adam_w_mode));
  }
  if (config.type == "FusedLAMB") {
    return std::make_unique<fused::FusedLAMB>(std::move(parameters), lamb_options<fused::FusedLAMBOptions>(config));
  }
  if (config.type == "FusedNovoGrad") {
    return std::make_unique<fused::FusedNovoGrad>(std::move(parameters), with_moments<fused::FusedNovoGradOptions>(config));
  }
  if (config.type == "FusedAdagrad") {
    return std::make_unique<fused::FusedAdagrad>(std::move(parameters), fused_adagrad_options(config));
  }
  if (config.type == "FusedMixedPrecisionLamb") {
    return std::make_unique<fused::FusedMixedPrecisionLamb>(std::move(parameters),
                                                            lamb_options<fused::FusedMixedPrecisionLambOptions>(config));
  }
  return std::make_unique<fused::FusedSGD>(std::move(parameters), fused_sgd_options(config));
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<torch::Tensor> parameters) {
  if (config.type.rfind("Fused", 0) == 0) {
    return make_fused(config, std::move(parameters));
  }
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
