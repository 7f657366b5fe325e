#include <apex_cpp/optimizers/fused_lars.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedLars = "FusedLARS";

void check(const detail::OptionsOwner& owner, const FusedLARSOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_lr(owner, options.lr());
  detail::check_not_negative(owner, "momentum", options.momentum());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
  detail::check_not_negative(owner, "trust_coefficient", options.trust_coefficient());
  detail::check_not_negative(owner, "eps", options.eps());
  TORCH_CHECK_VALUE(!options.nesterov() || options.momentum() > 0, owner, ": nesterov needs a momentum above 0, got ",
                    options.momentum(), ".");
}

kernels::LarsSettings settings_of(const FusedLARSOptions& options) {
  kernels::LarsSettings settings;
  settings.lr = options.lr();
  settings.weight_decay = options.weight_decay();
  settings.momentum = options.momentum();
  settings.trust_coefficient = options.trust_coefficient();
  settings.eps = options.eps();
  settings.nesterov = options.nesterov();
  settings.adapts = !options.is_skipped();
  return settings;
}

}  // namespace

FusedLARS::FusedLARS(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLARSOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedLARSOptions, FusedLARSParamState, check>(kFusedLars),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none, defaults.master_storage()}) {}

std::unique_ptr<torch::optim::OptimizerParamState> FusedLARS::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedLARSParamState>();
  detail::state_like(param.param, state->momentum_buffer, state_dtype(param.param));
  return state;
}

void FusedLARS::update() {
  const auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    auto settings = settings_of(detail::options_of<FusedLARSOptions>(param_groups_[group]));
    const kernels::StepTensors tensors = set_scaling(settings);
    update_sets(sets[group], [&](const detail::LaunchSet& set) {
      std::vector<at::Tensor> momentum_buffers;
      for (const at::Tensor& param : set.params) {
        at::Tensor& buffer = state_of<FusedLARSParamState>(param).momentum_buffer;
        momentum_buffers.push_back(detail::state_like(param, buffer, state_dtype(param)));
      }
      kernels::multi_tensor_lars(set.grads, set.params, momentum_buffers, set.model_params, /*norms=*/{}, settings,
                                 detail::placed_on(set.params.front().device(), tensors));
    });
  }
}

void FusedLARS::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedLARSParamState, FusedLARSOptions>(archive, *this);
  save_group_states(archive);
}

void FusedLARS::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedLARSParamState, FusedLARSOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedLARS::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
