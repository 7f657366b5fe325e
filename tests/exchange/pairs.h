#pragma once
// The models and optimizers that exchange_test.py has, too. Both sides train with gradients from a file, so that they differ in
// nothing but the optimizer's arithmetic.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

namespace apex::test {

/// A model of one kind: "linear", "mlp", "conv" (with batch norm), "tied" (two layers share a weight) or "lstm".
struct ExchangeNetImpl : torch::nn::Module {
  explicit ExchangeNetImpl(const std::string& kind);
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(ExchangeNet);

struct ExchangePair {
  const char* name;
  const char* model;
  std::unique_ptr<torch::optim::Optimizer> (*make_optimizer)(const ExchangeNet& model);
};

const std::vector<ExchangePair>& exchange_pairs();
/// Errors: ValueError for an unknown name.
const ExchangePair& exchange_pair(const std::string& name);

/// The model's parameters with their first names, each once.
std::vector<std::pair<std::string, at::Tensor>> unique_params(const torch::nn::Module& model);

}  // namespace apex::test
