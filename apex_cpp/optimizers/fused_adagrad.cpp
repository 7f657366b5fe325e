#include <apex_cpp/optimizers/fused_adagrad.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedAdagrad = "FusedAdagrad";

void check(const detail::OptionsOwner& owner, const FusedAdagradOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_lr(owner, options.lr());
  detail::check_not_negative(owner, "eps", options.eps());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
}

kernels::AdagradSettings settings_of(const FusedAdagradOptions& options) {
  kernels::AdagradSettings settings;
  settings.lr = options.lr();
  settings.weight_decay = options.weight_decay();
  settings.eps = options.eps();
  settings.adagrad_w_mode = options.adagrad_w_mode();
  return settings;
}

}  // namespace

FusedAdagrad::FusedAdagrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdagradOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedAdagradOptions, FusedAdagradParamState, check>(kFusedAdagrad),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none, defaults.master_storage()}) {}

std::unique_ptr<torch::optim::OptimizerParamState> FusedAdagrad::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedAdagradParamState>();
  detail::state_like(param.param, state->sum, state_dtype(param.param));
  return state;
}

void FusedAdagrad::update() {
  const auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    auto settings = settings_of(detail::options_of<FusedAdagradOptions>(param_groups_[group]));
    const kernels::StepTensors tensors = set_scaling(settings);
    update_sets(sets[group], [&](const detail::LaunchSet& set) {
      std::vector<at::Tensor> sums;
      for (const at::Tensor& param : set.params) {
        at::Tensor& sum = state_of<FusedAdagradParamState>(param).sum;
        sums.push_back(detail::state_like(param, sum, state_dtype(param)));
      }
      kernels::multi_tensor_adagrad(set.grads, set.params, sums, set.model_params, settings,
                                    detail::placed_on(set.params.front().device(), tensors));
    });
  }
}

void FusedAdagrad::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedAdagradParamState, FusedAdagradOptions>(archive, *this);
  save_group_states(archive);
}

void FusedAdagrad::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedAdagradParamState, FusedAdagradOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedAdagrad::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
