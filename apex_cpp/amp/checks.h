#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <apex_cpp/amp/session.h>

// The argument checks of `initialize` (CHK-*, OPT-01). None changes anything.
namespace apex::amp::detail {

/// Errors: RuntimeError naming the parameter or buffer that is 16-bit already (CHK-08, CHK-10).
void check_model(const torch::nn::Module& module, const Session& session);

/// Errors: RuntimeError for a handle (OPT-01), an optimizer none of whose parameters belongs to the models, LBFGS with master
/// weights; TypeError for a parameter dtype that amp does not train.
void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session);

}  // namespace apex::amp::detail
