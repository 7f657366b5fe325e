#include <apex_cpp/amp/checkpoint/part_state.h>

#include <apex_cpp/amp/checkpoint/model_content.h>
#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/session.h>

namespace apex::amp::detail {

OptimizerStash* stash_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    const bool left_behind = group.has_options() && dynamic_cast<const LeftBehindOptions*>(&group.options());
    TORCH_CHECK(!left_behind,
                "a checkpoint was asked for of an optimizer that amp::initialize has replaced. Pass the handle from "
                "`auto [net, opt] = amp::initialize(model, optimizer, …)`, not the original optimizer.");
  }
  const auto* handle = dynamic_cast<const AmpOptimizerBase*>(&optimizer);
  if (!handle) return nullptr;
  TORCH_CHECK(handle->stash(),
              "a checkpoint was asked for of an optimizer handle that was moved from. Pass the handle it was moved into.");
  handle->stash()->check_in_use();
  return handle->stash().get();
}

std::shared_ptr<Session> session_of(const std::vector<const torch::optim::Optimizer*>& optimizers,
                                    const std::shared_ptr<Session>& of_models) {
  std::shared_ptr<Session> session;
  for (const auto* optimizer : optimizers) {
    auto* stash = stash_of(*optimizer);
    if (!stash) continue;
    TORCH_CHECK(
        !session || session.get() == &stash->session(),
        "a checkpoint was asked for of optimizers of two amp::initialize calls, each with loss scalers of its own. Make a "
        "checkpoint for each.");
    session = stash->session().shared_from_this();
  }
  return session ? session : of_models;
}

std::string opt_level_of(const std::shared_ptr<Session>& session) {
  return session && session->enabled() ? session->settings.properties.opt_level : "";
}

ParamNames names_of(const std::vector<const torch::nn::Module*>& models) {
  ParamNames names;
  for (size_t i = 0; i < models.size(); ++i) {
    for (const auto& item : models[i]->named_parameters()) names.add(item.value(), full_name(i, item.key()));
  }
  return names;
}

}  // namespace apex::amp::detail
