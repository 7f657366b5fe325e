#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

namespace apex::amp::detail {

struct Session;

/// A handle for an optimizer whose class is known only at run time.
std::unique_ptr<torch::optim::Optimizer> erased_handle(torch::optim::Optimizer& optimizer, const std::shared_ptr<Session>&);
/// Errors: TypeError naming the class unless `erased_handle` knows it.
void check_erased_class(const torch::optim::Optimizer& optimizer);

}  // namespace apex::amp::detail
