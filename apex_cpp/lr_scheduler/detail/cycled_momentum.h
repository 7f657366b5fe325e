#pragma once

#include <torch/optim/optimizer.h>

#include <optional>

namespace apex::lr_scheduler::detail {

/// What OneCycleLR cycles in the options of a group: the first of `betas`, else `momentum`; none for a class of options with
/// neither of them, or of a program's own.
std::optional<double> cycled_momentum(const torch::optim::OptimizerOptions& options);
/// For options that have one.
void set_cycled_momentum(torch::optim::OptimizerOptions& options, double value);

}  // namespace apex::lr_scheduler::detail
