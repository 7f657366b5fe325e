#pragma once

#include <torch/optim/serialize.h>

#include <memory>
#include <vector>

#include <apex_cpp/optimizers/stepped_param.h>

// For source files.
namespace apex::optimizers::detail {

/// What a file has for an optimizer, read apart from it: where that fails, the optimizer is as it was.
class ReadOptimizer final : public torch::optim::Optimizer {
 public:
  ReadOptimizer() : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), nullptr) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

/// Errors: RuntimeError for a file of another class, or of an optimizer over other groups.
template <class State, class Options>
ReadOptimizer read_as_saved(torch::serialize::InputArchive& archive,
                            const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  ReadOptimizer read;
  for (const auto& group : groups) read.param_groups().emplace_back(group.params(), std::make_unique<Options>(0));
  torch::optim::serialize<State, Options>(archive, read);
  return read;
}

/// The same, with states that fit their parameters. Errors: as `read_as_saved`, and RuntimeError naming a parameter whose state
/// has another shape.
template <class State, class Options>
ReadOptimizer read_optimizer(torch::serialize::InputArchive& archive,
                             const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  ReadOptimizer read = read_as_saved<State, Options>(archive, groups);
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto& params = groups[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const auto state = read.state().find(params[i].unsafeGetTensorImpl());
      if (state != read.state().end()) static_cast<State&>(*state->second).fit_to(params[i], name_of(group, i, params[i]));
    }
  }
  return read;
}

}  // namespace apex::optimizers::detail
