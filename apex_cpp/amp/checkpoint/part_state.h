#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include <apex_cpp/amp/checkpoint/optimizer_content.h>

namespace apex::amp::detail {

struct Session;

/// amp's state of an optimizer; null without amp. Errors, all naming the remedy: RuntimeError for an optimizer that
/// `initialize` has replaced, or that was moved from.
OptimizerStash* stash_of(const torch::optim::Optimizer& optimizer);

/// The session that the optimizers' handles belong to, or `of_models`; null without amp. Errors: as `stash_of`, and
/// RuntimeError for handles of several sessions.
std::shared_ptr<Session> session_of(const std::vector<const torch::optim::Optimizer*>& optimizers,
                                    const std::shared_ptr<Session>& of_models);

/// The level in force; empty without amp.
std::string opt_level_of(const std::shared_ptr<Session>& session);

ParamNames names_of(const std::vector<const torch::nn::Module*>& models);

}  // namespace apex::amp::detail
