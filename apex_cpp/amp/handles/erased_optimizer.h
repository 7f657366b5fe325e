#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <typeinfo>

namespace apex::amp::detail {

struct Session;

/// A handle for an optimizer whose class is known only at run time.
std::unique_ptr<torch::optim::Optimizer> erased_handle(torch::optim::Optimizer& optimizer, const std::shared_ptr<Session>&);
/// Errors: TypeError naming the class and the remedy unless it is `own_class`, by which the program holds the optimizer; where
/// that is null, it holds it as a torch::optim::Optimizer, unless `erased_handle` knows it.
void check_class(const torch::optim::Optimizer& optimizer, const std::type_info* own_class);

}  // namespace apex::amp::detail
