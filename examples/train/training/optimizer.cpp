#include "training/optimizer.h"

#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "errors.h"

namespace train {
namespace {

namespace optim = torch::optim;
using Parameters = std::vector<torch::Tensor>;

// Options that LibTorch's class and Apex's have under the same names.

template <class Options>
Options sgd_options(const OptimizerConfig& config) {
  return Options(config.lr)
      .momentum(config.momentum)
      .dampening(config.dampening)
      .weight_decay(config.weight_decay)
      .nesterov(config.nesterov);
}

template <class Options>
Options moment_options(const OptimizerConfig& config) {
  return Options(config.lr).betas({config.beta1, config.beta2}).eps(config.eps).weight_decay(config.weight_decay);
}

template <class Options>
Options adagrad_options(const OptimizerConfig& config) {
  return Options(config.lr).weight_decay(config.weight_decay).eps(config.eps);
}

template <class Options>
Options adam_options(const OptimizerConfig& config) {
  return moment_options<Options>(config).amsgrad(config.amsgrad);
}

optim::RMSpropOptions rmsprop_options(const OptimizerConfig& config) {
  return optim::RMSpropOptions(config.lr)
      .alpha(config.alpha)
      .eps(config.eps)
      .weight_decay(config.weight_decay)
      .momentum(config.momentum)
      .centered(config.centered);
}

template <class Options>
Options lamb_options(const OptimizerConfig& config) {
  return moment_options<Options>(config).adam_w_mode(config.adam_w_mode).max_grad_norm(config.max_grad_norm);
}

template <class Opt, class Options>
std::unique_ptr<optim::Optimizer> fused_optimizer(const OptimizerConfig& config, Parameters parameters, Options options) {
  options.materialize_master_grads(config.materialize_master_grads);
  options.master_storage(apex::optimizers::master_storage_named(config.master_storage));
  return std::make_unique<Opt>(std::move(parameters), options);
}

std::unique_ptr<optim::Optimizer> make_sharded(const OptimizerConfig& config, Parameters parameters) {
  using namespace apex::parallel;
  if (!is_initialized()) {
    throw UserError("key 'optimizer.type': DistributedFusedAdam is for several processes: start them by tools/train --nproc N");
  }
  const auto options = moment_options<DistributedFusedAdamOptions>(config)
                           .adam_w_mode(config.adam_w_mode)
                           .master_storage(apex::optimizers::master_storage_named(config.master_storage))
                           .moment_storage(apex::optimizers::moment_storage_named(config.moment_storage));
  return std::make_unique<DistributedFusedAdam>(std::move(parameters), options);
}

std::unique_ptr<optim::Optimizer> make_fused(const OptimizerConfig& config, Parameters parameters) {
  using namespace apex::optimizers;
  if (config.type == "FusedAdam") {
    const auto options = moment_options<FusedAdamOptions>(config)
                             .adam_w_mode(config.adam_w_mode)
                             .moment_storage(moment_storage_named(config.moment_storage));
    return fused_optimizer<FusedAdam>(config, std::move(parameters), options);
  }
  if (config.type == "FusedLAMB") {
    return fused_optimizer<FusedLAMB>(config, std::move(parameters), lamb_options<FusedLAMBOptions>(config));
  }
  if (config.type == "FusedNovoGrad") {
    return fused_optimizer<FusedNovoGrad>(config, std::move(parameters), moment_options<FusedNovoGradOptions>(config));
  }
  if (config.type == "FusedAdagrad") {
    return fused_optimizer<FusedAdagrad>(config, std::move(parameters), adagrad_options<FusedAdagradOptions>(config));
  }
  if (config.type == "FusedLARS") {
    const auto options = FusedLARSOptions(config.lr)
                             .momentum(config.momentum)
                             .weight_decay(config.weight_decay)
                             .nesterov(config.nesterov)
                             .eps(config.eps)
                             .trust_coefficient(config.trust_coefficient);
    return fused_optimizer<FusedLARS>(config, std::move(parameters), options);
  }
  if (config.type == "FusedLion") {
    const auto options = FusedLionOptions(config.lr).betas({config.beta1, config.beta2}).weight_decay(config.weight_decay);
    return fused_optimizer<FusedLion>(config, std::move(parameters), options);
  }
  if (config.type == "FusedScheduleFreeAdamW") {
    const auto options = moment_options<FusedScheduleFreeAdamWOptions>(config)
                             .warmup_steps(config.warmup_steps)
                             .r(config.r)
                             .weight_lr_power(config.weight_lr_power);
    return fused_optimizer<FusedScheduleFreeAdamW>(config, std::move(parameters), options);
  }
  if (config.type == "FusedMixedPrecisionLamb") {
    return fused_optimizer<FusedMixedPrecisionLamb>(config, std::move(parameters),
                                                    lamb_options<FusedMixedPrecisionLambOptions>(config));
  }
  return fused_optimizer<FusedSGD>(config, std::move(parameters), sgd_options<FusedSGDOptions>(config));
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<torch::Tensor> parameters) {
  if (config.is_muon()) {
    throw UserError(
        "key 'optimizer.type': Muon trains beside a second optimizer, for which this tool has no place; use FusedAdam");
  }
  if (config.is_sharded()) {
    return make_sharded(config, std::move(parameters));
  }
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
    return std::make_unique<optim::Adagrad>(std::move(parameters),
                                            adagrad_options<optim::AdagradOptions>(config).lr_decay(config.lr_decay));
  }
  return std::make_unique<optim::SGD>(std::move(parameters), sgd_options<optim::SGDOptions>(config));
}

std::vector<std::unique_ptr<optim::Optimizer>> make_optimizers(const OptimizerConfig& config, const torch::nn::Module& model) {
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  if (!config.is_muon()) {
    optimizers.push_back(make_optimizer(config, model.parameters()));
    return optimizers;
  }
  auto others = model.parameters();
  const auto is_matrix = [](const torch::Tensor& parameter) { return parameter.dim() == 2; };
  const auto last = std::find_if(others.rbegin(), others.rend(), is_matrix).base();
  const auto end_of_hidden = std::stable_partition(others.begin(), last == others.begin() ? last : last - 1, is_matrix);
  Parameters hidden(others.begin(), end_of_hidden);
  if (hidden.empty()) {
    throw UserError(
        "key 'optimizer.type': Muon is for matrices of hidden layers, which this model does not have; use FusedAdam");
  }
  others.erase(others.begin(), end_of_hidden);
  OptimizerConfig adam = config;
  adam.type = "FusedAdam";
  optimizers.push_back(make_optimizer(adam, std::move(others)));
  const auto options = apex::optimizers::MuonOptions(config.lr)
                           .weight_decay(config.weight_decay)
                           .ns_steps(config.ns_steps)
                           .adjust_lr_fn(config.adjust_lr_fn)
                           .materialize_master_grads(config.materialize_master_grads);
  optimizers.push_back(std::make_unique<apex::optimizers::Muon>(std::move(hidden), options));
  return optimizers;
}

void set_training(optim::Optimizer& optimizer, bool training) {
  if (auto* schedule_free = dynamic_cast<apex::optimizers::FusedScheduleFreeAdamW*>(&optimizer)) {
    training ? schedule_free->train() : schedule_free->eval();
  }
}

void set_learning_rate(optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
}

}  // namespace train
