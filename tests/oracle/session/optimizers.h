#pragma once

#include <apex_cpp/parallel/larc.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

// One entry of an optimizer's per-parameter state, under PyTorch's name: a tensor, or a number where `tensor` is undefined.
struct StateEntry {
  std::string name;
  at::Tensor tensor;
  double number = 0;
};

// What the replayer must know about one optimizer class.
struct OptimizerType {
  using Options = torch::optim::OptimizerOptions;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // The class's defaults, as its Python twin has them.
  std::function<std::unique_ptr<Options>()> defaults;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Groups, const Options& defaults)> make;
  // LARC around an optimizer of this class.
  std::function<std::unique_ptr<torch::optim::Optimizer>(torch::optim::Optimizer&, const apex::parallel::LARCOptions&)> in_larc;
  // Answers false for an option that the class does not have.
  std::function<bool(Options&, const std::string& name, const Json& value)> set_option;
  std::function<std::vector<StateEntry>(const torch::optim::OptimizerParamState&)> read_state;
  // What it keeps for a param group beside the options; empty for classes that keep nothing there.
  std::function<std::vector<StateEntry>(const torch::optim::Optimizer&, size_t group)> read_group_state;
  // Early steps have the size of the learning rate for any gradient, so a rounding can reverse a step.
  bool steps_like_sign = false;
};

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make_larc(torch::optim::Optimizer& optimizer,
                                                   const apex::parallel::LARCOptions& options) {
  return std::make_unique<apex::parallel::LARC<Opt>>(static_cast<Opt&>(optimizer), options);
}

// Optimizer classes by PyTorch's or Apex's name. A new class is one more entry.
const std::map<std::string, OptimizerType>& optimizer_registry();

// apex::optimizers' entries.
void add_fused_optimizers(std::map<std::string, OptimizerType>& registry);

// Throws NeedsFeature when the class is not in the registry.
const OptimizerType& optimizer_type(const std::string& name);

// Writes every member of `values` (null: nothing) into `options`. Throws NeedsFeature for an option that the class lacks.
void set_options(const std::string& type, OptimizerType::Options& options, const Json* values);

}  // namespace oracle
