#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace apex::lr_scheduler::detail {

/// The rate of each group from before its first scheduler: Python's `initial_lr`, for which options in LibTorch have no place.
/// All schedulers of a group share one, also those of an optimizer and of the handle that has replaced it.
using InitialLrs = std::vector<std::shared_ptr<double>>;

/// The optimizer's current rates.
std::vector<double> current_lrs(torch::optim::Optimizer& optimizer);

/// The initial rates, which are the current ones of those groups that no living scheduler has. They live as long as any
/// scheduler holds them. Callable from any thread.
InitialLrs initial_lrs_of(torch::optim::Optimizer& optimizer);

std::vector<double> values_of(const InitialLrs& lrs);

}  // namespace apex::lr_scheduler::detail
