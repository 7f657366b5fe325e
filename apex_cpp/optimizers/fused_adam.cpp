#include <apex_cpp/optimizers/fused_adam.h>

#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/remainders.h>

#include <ATen/ops/empty_like.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedAdam = "FusedAdam";

void check(const std::string& owner, const FusedAdamOptions& options) {
  detail::check_no_amsgrad(owner, options);
  TORCH_CHECK(
      !options.master_weights() || options.capturable(), owner,
      ": master_weights needs capturable. Set both, or let amp::initialize(model, optimizer, \"O2\") keep the masters.");
  detail::check_moments(owner, options);
}

}  // namespace

namespace {

// Masters of a file of master_weights, in an optimizer that stores remainders.
void keep_as_remainder(const at::Tensor& param, FusedAdamParamState& state) {
  if (!state.remainder.defined() || !state.master_param.defined()) return;
  detail::split_into(state.master_param, at::empty_like(param), state.remainder);
  state.master_param.reset();
}

}  // namespace

kernels::AdamSettings detail::adam_settings(const FusedAdamOptions& options) {
  auto settings = detail::moment_settings<kernels::AdamSettings>(options);
  settings.adam_w_mode = options.adam_w_mode();
  return settings;
}

FusedAdam::FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults)
    : FusedOptimizer(groups, defaults.clone(), detail::options_rules<FusedAdamOptions, check>(kFusedAdam),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(),
                      defaults.capturable() ? Counting::on_device : Counting::on_host, defaults.master_storage()}),
      master_weights_(defaults.master_weights()) {}

std::unique_ptr<torch::optim::OptimizerParamState> FusedAdam::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedAdamParamState>();
  detail::state_like(param.param, state->exp_avg, at::kFloat);
  detail::state_like(param.param, state->exp_avg_sq, at::kFloat);
  const bool stored_beside = param.copy.defined() || detail::splits(param.param, master_storage());
  if (master_weights_ && !stored_beside) detail::master_like(param.param, state->master_param);
  return state;
}

void FusedAdam::use_own_masters(detail::LaunchSet& set) {
  if (!master_weights_ || !set.model_params.empty()) return;
  set.model_params = set.params;
  for (at::Tensor& param : set.params) param = detail::master_like(param, state_of<FusedAdamParamState>(param).master_param);
}

void FusedAdam::update() {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (param_groups_[group].params().empty()) continue;
    const auto group_settings = detail::adam_settings(detail::options_of<FusedAdamOptions>(param_groups_[group]));
    run_step(group, launch_sets(group), group_settings, [&](detail::LaunchSet& set, const auto& settings, const auto& tensors) {
      std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
      for (const at::Tensor& param : set.params) {
        auto& state = state_of<FusedAdamParamState>(param);
        exp_avgs.push_back(detail::state_like(param, state.exp_avg, at::kFloat));
        exp_avg_sqs.push_back(detail::state_like(param, state.exp_avg_sq, at::kFloat));
      }
      use_own_masters(set);
      kernels::multi_tensor_adam(set.grads, set.params, exp_avgs, exp_avg_sqs, set.model_params, settings, tensors);
    });
  }
}

void FusedAdam::update_device_lr() { write_device_lrs(); }

void FusedAdam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, *this);
  save_group_states(archive);
}

void FusedAdam::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedAdamParamState, FusedAdamOptions>(archive, param_groups_, master_storage());
  for (const auto& group : param_groups_) {
    for (const at::Tensor& param : group.params()) {
      const auto state = read.state().find(param.unsafeGetTensorImpl());
      if (state != read.state().end()) keep_as_remainder(param, static_cast<FusedAdamParamState&>(*state->second));
    }
  }
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedAdam::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
