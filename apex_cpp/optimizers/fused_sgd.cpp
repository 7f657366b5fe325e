#include <apex_cpp/optimizers/fused_sgd.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include <c10/util/ScopeExit.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedSGD = "FusedSGD";

void check(const detail::OptionsOwner& owner, const FusedSGDOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_lr(owner, options.lr());
  detail::check_not_negative(owner, "momentum", options.momentum());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
  TORCH_CHECK_VALUE(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0), owner,
                    ": nesterov needs a momentum above 0 and no dampening, got momentum ", options.momentum(),
                    " and dampening ", options.dampening(), ".");
}

kernels::SgdSettings settings_of(const FusedSGDOptions& options) {
  kernels::SgdSettings settings;
  settings.lr = options.lr();
  settings.weight_decay = options.weight_decay();
  settings.momentum = options.momentum();
  settings.dampening = options.dampening();
  settings.nesterov = options.nesterov();
  settings.weight_decay_after_momentum = options.wd_after_momentum();
  return settings;
}

}  // namespace

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedSGDOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedSGDOptions, FusedSGDParamState, check>(kFusedSGD),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none, defaults.master_storage()}) {}

std::unique_ptr<torch::optim::OptimizerParamState> FusedSGD::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedSGDParamState>();
  detail::state_like(param.param, state->momentum_buffer, state_dtype(param.param));
  return state;
}

void FusedSGD::update() {
  const auto sets = launch_sets(/*split_fresh=*/true);
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    auto settings = settings_of(detail::options_of<FusedSGDOptions>(param_groups_[group]));
    const kernels::StepTensors tensors = set_scaling(settings);
    update_sets(sets[group], [&](const detail::LaunchSet& set) {
      auto stays_fresh = c10::make_scope_exit([&] { forget_first_step(set); });  // where the kernel refuses a tensor
      std::vector<at::Tensor> momentum_buffers;
      for (const at::Tensor& param : set.params) {
        at::Tensor& buffer = state_of<FusedSGDParamState>(param).momentum_buffer;
        momentum_buffers.push_back(detail::state_like(param, buffer, state_dtype(param)));
      }
      settings.first_run = set.fresh;
      kernels::multi_tensor_sgd(set.grads, set.params, momentum_buffers, set.model_params, settings,
                                detail::placed_on(set.params.front().device(), tensors));
      stays_fresh.release();
    });
  }
}

void FusedSGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedSGDParamState, FusedSGDOptions>(archive, *this);
  save_group_states(archive);
}

void FusedSGD::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedSGDParamState, FusedSGDOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedSGD::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
