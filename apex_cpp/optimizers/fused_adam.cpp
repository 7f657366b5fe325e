#include <apex_cpp/optimizers/fused_adam.h>

#include <ATen/ops/zeros_like.h>

#include <apex_cpp/optimizers/detail/adam_control.h>
#include <apex_cpp/optimizers/detail/class_functions.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedAdam = "FusedAdam";

void check(const FusedAdamOptions& options) {
  detail::check_no_amsgrad(kFusedAdam, options);
  TORCH_CHECK(
      !options.master_weights() || options.capturable(), kFusedAdam,
      ": master_weights needs capturable. Set both, or let amp::initialize(model, optimizer, \"O2\") keep the masters.");
  detail::check_moments(kFusedAdam, options);
}

}  // namespace

kernels::AdamControl detail::adam_control(const FusedAdamOptions& options) {
  kernels::AdamControl control;
  control.lr = options.lr();
  control.weight_decay = options.weight_decay();
  std::tie(control.beta1, control.beta2) = options.betas();
  control.eps = options.eps();
  control.bias_correction = options.bias_correction();
  control.adam_w_mode = options.adam_w_mode();
  return control;
}

FusedAdam::FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults)
    : FusedOptimizer(groups, defaults.clone(),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(),
                      defaults.capturable() ? Counting::on_device : Counting::on_host}),
      master_weights_(defaults.master_weights()) {
  check(defaults);
}

void FusedAdam::use_own_masters(detail::LaunchSet& set) {
  if (!master_weights_ || !set.model_params.empty()) return;
  set.model_params = set.params;
  for (at::Tensor& param : set.params) {
    at::Tensor& master = state_of<FusedAdamParamState>(param).master_param;
    if (!master.defined()) master = param.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    param = master;
  }
}

void FusedAdam::update() {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (param_groups_[group].params().empty()) continue;
    const auto control = detail::adam_control(detail::options_of<FusedAdamOptions>(param_groups_[group]));
    run_step(group, launch_sets(group), control, [&](detail::LaunchSet& set, const kernels::AdamControl& at_step) {
      std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
      for (const at::Tensor& param : set.params) {
        auto& state = state_of<FusedAdamParamState>(param);
        if (!state.exp_avg.defined()) state.exp_avg = at::zeros_like(param, at::kFloat);
        if (!state.exp_avg_sq.defined()) state.exp_avg_sq = at::zeros_like(param, at::kFloat);
        exp_avgs.push_back(state.exp_avg);
        exp_avg_sqs.push_back(state.exp_avg_sq);
      }
      use_own_masters(set);
      kernels::multi_tensor_adam(set.grads, set.params, exp_avgs, exp_avg_sqs, set.model_params, at_step);
    });
  }
}

void FusedAdam::update_device_lr() { write_device_lrs(); }

void FusedAdam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, *this);
  save_group_states(archive);
}

void FusedAdam::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, *this);
  load_group_states(archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedAdam::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
