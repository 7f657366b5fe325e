#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace apex::lr_scheduler::detail {

/// The rates of an optimizer's groups from before its first scheduler: Python's `initial_lr`, for which options in LibTorch
/// have no place. One object for all schedulers of an optimizer.
struct InitialLrs {
  std::vector<double> lrs;
};

/// The optimizer's current rates.
std::vector<double> current_lrs(torch::optim::Optimizer& optimizer);

/// The object of `optimizer`, with the current rates of those groups that it does not know. It is made for the first scheduler
/// and lives as long as any scheduler holds it. Callable from any thread.
std::shared_ptr<InitialLrs> initial_lrs_of(torch::optim::Optimizer& optimizer);

}  // namespace apex::lr_scheduler::detail
