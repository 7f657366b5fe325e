#include "tests/exchange/pairs.h"

#include <ATen/ops/zeros.h>
#include <apex_cpp/optimizers/fused_adagrad.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/optimizers/fused_sgd.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>
#include <utility>

namespace apex::test {
namespace {

/// A linear layer's parameters, with the weight of another layer.
struct TiedLayer : torch::nn::Module {
  explicit TiedLayer(const at::Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", at::zeros({weight.size(0)}));
  }
};

using torch::optim::OptimizerParamGroup;
using Made = std::unique_ptr<torch::optim::Optimizer>;

// Without amp, LibTorch's classes would step a tied weight once for each of its names.
template <class Opt, class Options>
Made one_group(const ExchangeNet& model, const Options& options) {
  std::vector<at::Tensor> params;
  for (const auto& item : unique_params(*model)) params.push_back(item.second);
  return std::make_unique<Opt>(params, options);
}

// Weights of matrices in one group, all others in a second one with a learning rate of its own.
template <class Opt, class Options>
Made two_groups(const ExchangeNet& model, const Options& options, double second_lr) {
  std::vector<at::Tensor> matrices, others;
  for (const auto& [name, param] : unique_params(*model)) (param.dim() > 1 ? matrices : others).push_back(param);
  Options second = options;
  second.lr(second_lr);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(options));
  groups.emplace_back(others, std::make_unique<Options>(second));
  return std::make_unique<Opt>(groups, options);
}

Made sgd(const ExchangeNet& model) { return one_group<torch::optim::SGD>(model, torch::optim::SGDOptions(0.05)); }
Made sgd_nesterov(const ExchangeNet& model) {
  return one_group<torch::optim::SGD>(model, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
}
Made sgd_groups(const ExchangeNet& model) {
  return two_groups<torch::optim::SGD>(model, torch::optim::SGDOptions(0.05).momentum(0.8).dampening(0.1), 0.02);
}
Made rmsprop(const ExchangeNet& model) {
  return one_group<torch::optim::RMSprop>(model, torch::optim::RMSpropOptions(0.01).momentum(0.5).weight_decay(0.01));
}
Made rmsprop_centered(const ExchangeNet& model) {
  return one_group<torch::optim::RMSprop>(model, torch::optim::RMSpropOptions(0.01).centered(true));
}
Made adagrad(const ExchangeNet& model) {
  return one_group<torch::optim::Adagrad>(
      model, torch::optim::AdagradOptions(0.02).lr_decay(0.1).weight_decay(0.01).initial_accumulator_value(0.125));
}
Made adam(const ExchangeNet& model) {
  return one_group<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01));
}
Made adamw(const ExchangeNet& model) {
  return two_groups<torch::optim::AdamW>(model, torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}), 0.005);
}
Made fused_adamw(const ExchangeNet& model) {
  return two_groups<optimizers::FusedAdam>(model, optimizers::FusedAdamOptions(0.01).weight_decay(0.1), 0.005);
}
Made fused_adam(const ExchangeNet& model) {
  const auto options = optimizers::FusedAdamOptions(0.01).adam_w_mode(false).weight_decay(0.01);
  return std::make_unique<optimizers::FusedAdam>(model->parameters(), options);
}
Made fused_sgd(const ExchangeNet& model) {
  return one_group<optimizers::FusedSGD>(model, optimizers::FusedSGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}
Made fused_adagrad(const ExchangeNet& model) {
  return one_group<optimizers::FusedAdagrad>(model, optimizers::FusedAdagradOptions(0.02).weight_decay(0.01));
}

}  // namespace

ExchangeNetImpl::ExchangeNetImpl(const std::string& kind) {
  using namespace torch::nn;
  if (kind == "linear") {
    register_module("fc", Linear(7, 3));
  } else if (kind == "mlp") {
    register_module("first", Linear(5, 9));
    register_module("second", Linear(9, 2));
  } else if (kind == "conv") {
    register_module("conv", Conv2d(Conv2dOptions(2, 3, 3)));
    register_module("bn", BatchNorm2d(3));
    register_module("head", Linear(3, 4));
  } else if (kind == "tied") {
    auto embedding = register_module("embedding", Embedding(6, 4));
    register_module("head", std::make_shared<TiedLayer>(embedding->weight));
  } else {
    TORCH_CHECK_VALUE(kind == "lstm", "no model '", kind, "'");
    register_module("lstm", LSTM(LSTMOptions(3, 5)));
  }
}

const std::vector<ExchangePair>& exchange_pairs() {
  static const std::vector<ExchangePair> pairs = {{"sgd", "linear", sgd},
                                                  {"sgd_nesterov", "mlp", sgd_nesterov},
                                                  {"sgd_groups", "lstm", sgd_groups},
                                                  {"rmsprop", "conv", rmsprop},
                                                  {"adagrad", "tied", adagrad},
                                                  {"rmsprop_centered", "linear", rmsprop_centered},
                                                  {"adam", "mlp", adam},
                                                  {"adamw", "conv", adamw},
                                                  {"fused_adamw", "lstm", fused_adamw},
                                                  {"fused_adam", "tied", fused_adam},
                                                  {"fused_sgd", "conv", fused_sgd},
                                                  {"fused_adagrad", "mlp", fused_adagrad}};
  return pairs;
}

const ExchangePair& exchange_pair(const std::string& name) {
  for (const auto& pair : exchange_pairs()) {
    if (name == pair.name) return pair;
  }
  C10_THROW_ERROR(ValueError, "no pair '" + name + "'");
}

std::vector<std::pair<std::string, at::Tensor>> unique_params(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, at::Tensor>> params;
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) params.emplace_back(item.key(), item.value());
  }
  return params;
}

}  // namespace apex::test
