#include <apex_cpp/optimizers/fused_lamb.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/optimizers/detail/fused_step.h>

namespace apex::optimizers {
namespace {

constexpr const char* kFusedLamb = "FusedLAMB";

void check(const detail::OptionsOwner& owner, const FusedLAMBOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_no_amsgrad(owner, options);
  detail::check_moments(owner, options);
}

}  // namespace

FusedLAMB::FusedLAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedLAMBOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedLAMBOptions, FusedLAMBParamState, check>(kFusedLamb),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::on_host, defaults.master_storage()}),
      max_grad_norm_(defaults.max_grad_norm()) {}

// In Apex's way, the first stage leaves the update in the gradient. With remainders no memory holds it.
FusedLAMB::UpdateIn FusedLAMB::update_in(const at::Tensor& param, const at::Tensor& grad) const {
  if (keeps_masters_of(param.scalar_type())) return UpdateIn::nothing;
  return !master_step.grads_in_model && grad.scalar_type() == param.scalar_type() ? UpdateIn::grad : UpdateIn::state;
}

std::unique_ptr<torch::optim::OptimizerParamState> FusedLAMB::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedLAMBParamState>();
  detail::state_like(param.param, state->exp_avg, state_dtype(param.param));
  detail::state_like(param.param, state->exp_avg_sq, state_dtype(param.param));
  if (update_in(param.param, param.grad) == UpdateIn::state) detail::state_like(param.param, state->update, at::kFloat);
  return state;
}

void FusedLAMB::update_group(size_t group, const std::vector<detail::LaunchSet>& sets, const at::Tensor& global_norm) {
  const auto& options = detail::options_of<FusedLAMBOptions>(param_groups_[group]);
  run_step(group, sets, detail::lamb_settings(options, max_grad_norm_),
           [&](const detail::LaunchSet& set, const auto& settings, const auto& tensors) {
             detail::LambState lists;
             for (size_t i = 0; i < set.params.size(); ++i) {
               const at::Tensor& param = set.params[i];
               auto& state = state_of<FusedLAMBParamState>(param);
               const UpdateIn place = update_in(param, set.grads[i]);
               lists.exp_avgs.push_back(detail::state_like(param, state.exp_avg, state_dtype(param)));
               lists.exp_avg_sqs.push_back(detail::state_like(param, state.exp_avg_sq, state_dtype(param)));
               if (place == UpdateIn::grad) lists.updates.push_back(set.grads[i]);
               if (place == UpdateIn::state) lists.updates.push_back(detail::state_like(param, state.update, at::kFloat));
             }
             detail::lamb_step(set, lists, global_norm, settings, tensors, [this] { mark_updated(); });
           });
}

void FusedLAMB::update() {
  if (!master_step.grads_in_model) amp::detail::separate_grads_of_groups(param_groups_);  // the updates may overwrite gradients
  const auto sets = launch_sets();
  kernels::StepSettings settings;
  const kernels::StepTensors tensors = set_scaling(settings);
  const at::Tensor global_norm = max_grad_norm_ > 0 ? detail::global_grad_norm(sets, settings, tensors) : at::Tensor();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) update_group(group, sets[group], global_norm);
  }
}

void FusedLAMB::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedLAMBParamState, FusedLAMBOptions>(archive, *this);
  save_group_states(archive);
}

void FusedLAMB::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedLAMBParamState, FusedLAMBOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedLAMB::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
