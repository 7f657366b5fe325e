#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <apex_cpp/amp/session/session.h>

#include <vector>

// The argument checks of `initialize` (CHK-*, OPT-01). None changes anything.
namespace apex::amp::detail {

/// Errors: RuntimeError naming the parameter or buffer that came in 16 bits (CHK-08, CHK-10), or a parameter that
/// DistributedDataParallel holds (CHK-07).
void check_model(const torch::nn::Module& module, const Session& session);

/// Errors: RuntimeError for a handle (OPT-01), an optimizer none of whose parameters belongs to the models, LBFGS with master
/// weights; TypeError for a parameter dtype that amp does not train; ValueError for a parameter in two groups.
void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session);

/// Errors: RuntimeError naming a parameter that two optimizers train, where there are master weights.
void check_one_master_each(const std::vector<torch::optim::Optimizer*>& optimizers, const Session& session);

/// Says, in a warning, that the model has float64 parameters, and names the first.
void warn_of_float64(const torch::nn::Module& module);

}  // namespace apex::amp::detail
