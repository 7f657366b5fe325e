#include <apex_cpp/optimizers/fused_lion.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedLion = "FusedLion";

void check(const detail::OptionsOwner& owner, const FusedLionOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_lr(owner, options.lr());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
  detail::check_betas(owner, options.betas());
}

kernels::LionSettings settings_of(const FusedLionOptions& options) {
  kernels::LionSettings settings;
  settings.lr = options.lr();
  settings.weight_decay = options.weight_decay();
  std::tie(settings.beta1, settings.beta2) = options.betas();
  return settings;
}

}  // namespace

FusedLion::FusedLion(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLionOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedLionOptions, FusedLionParamState, check>(kFusedLion),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none, defaults.master_storage()}) {}

std::unique_ptr<torch::optim::OptimizerParamState> FusedLion::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedLionParamState>();
  detail::state_like(param.param, state->exp_avg, state_dtype(param.param));
  return state;
}

void FusedLion::update() {
  const auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    auto settings = settings_of(detail::options_of<FusedLionOptions>(param_groups_[group]));
    const kernels::StepTensors tensors = set_scaling(settings);
    update_sets(sets[group], [&](const detail::LaunchSet& set) {
      std::vector<at::Tensor> exp_avgs;
      for (const at::Tensor& param : set.params) {
        at::Tensor& exp_avg = state_of<FusedLionParamState>(param).exp_avg;
        exp_avgs.push_back(detail::state_like(param, exp_avg, state_dtype(param)));
      }
      kernels::multi_tensor_lion(set.grads, set.params, exp_avgs, set.model_params, settings,
                                 detail::placed_on(set.params.front().device(), tensors));
    });
  }
}

void FusedLion::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedLionParamState, FusedLionOptions>(archive, *this);
  save_group_states(archive);
}

void FusedLion::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedLionParamState, FusedLionOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedLion::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
