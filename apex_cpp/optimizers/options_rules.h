#pragma once

#include <torch/optim/optimizer.h>

#include <string>

namespace apex::optimizers::detail {

/// What an optimizer class asks of the options of its groups.
struct OptionsRules {
  const char* optimizer;  // the class's name
  bool (*are_own)(const torch::optim::OptimizerOptions&);
  void (*check_values)(const std::string& owner, const torch::optim::OptimizerOptions&);
  void (*assign)(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from);
};

/// Errors: TypeError naming the group if its options are of another class, which would be read as what they are not.
void check_class(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options);

/// Errors: as `check_class`, and for values what the class says, of the group.
void check_options(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options);

}  // namespace apex::optimizers::detail
