#include <apex_cpp/optimizers/fused_mixed_precision_lamb.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include <optional>

namespace apex::optimizers {
namespace {

constexpr const char* kFusedMixedPrecisionLamb = "FusedMixedPrecisionLamb";

void check(const detail::OptionsOwner& owner, const FusedMixedPrecisionLambOptions& options) {
  detail::check_no_amsgrad(owner, options);
  detail::check_float32_masters(owner, options);
  detail::check_moments(owner, options);
  const auto dtype = options.reduced_precision_dtype();
  TORCH_CHECK(!dtype || *dtype == at::kHalf || *dtype == at::kBFloat16, owner, ": reduced_precision_dtype is ", *dtype,
              ". Use float16 or bfloat16, or leave it out.");
  TORCH_CHECK_VALUE(options.step() >= 0, owner, ": step must not be negative, got ", options.step(), ".");
}

}  // namespace

FusedMixedPrecisionLamb::FusedMixedPrecisionLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                                 FusedMixedPrecisionLambOptions defaults)
    : FusedOptimizer(groups, defaults.clone(),
                     detail::options_rules<FusedMixedPrecisionLambOptions, FusedMixedPrecisionLambParamState, check>(
                         kFusedMixedPrecisionLamb),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::on_device}),
      max_grad_norm_(defaults.max_grad_norm()),
      reduced_precision_dtype_(defaults.reduced_precision_dtype()) {}

void FusedMixedPrecisionLamb::check_group(size_t group) const {
  const auto& params = param_groups_[group].params();
  std::optional<at::ScalarType> first;  // with a gradient; amp keeps frozen parameters in 16 bits beside masters
  for (size_t i = 0; i < params.size(); ++i) {
    if (!grad_of(group, i).defined()) continue;
    const at::ScalarType type = params[i].scalar_type();
    if (!first) first = type;
    TORCH_CHECK(type == *first, kFusedMixedPrecisionLamb, ": parameter ", i, " of group ", group, " is ", type,
                ", the group's first one is ", *first, ". Give parameters of each dtype a group of their own.");
  }
}

int64_t FusedMixedPrecisionLamb::steps_at_start(size_t group) const {
  return detail::options_of<FusedMixedPrecisionLambOptions>(param_groups_[group]).step();
}

std::unique_ptr<torch::optim::OptimizerParamState> FusedMixedPrecisionLamb::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedMixedPrecisionLambParamState>();
  detail::state_like(param.param, state->exp_avg, at::kFloat);
  detail::state_like(param.param, state->exp_avg_sq, at::kFloat);
  detail::state_like(param.param, state->update, at::kFloat);
  const bool keeps_master = !param.copy.defined() && param.param.scalar_type() == reduced_precision_dtype_;
  if (keeps_master) detail::master_like(param.param, state->master_param);
  return state;
}

at::Tensor* FusedMixedPrecisionLamb::own_master(const at::Tensor& param) {
  const bool owns = param.scalar_type() == reduced_precision_dtype_ && has_state(param);
  return owns ? &state_of<FusedMixedPrecisionLambParamState>(param).master_param : nullptr;
}

void FusedMixedPrecisionLamb::update_group(size_t group, std::vector<detail::LaunchSet>& sets, const at::Tensor& global_norm) {
  const auto& options = detail::options_of<FusedMixedPrecisionLambOptions>(param_groups_[group]);
  run_step(group, sets, detail::lamb_settings(options, max_grad_norm_),
           [&](detail::LaunchSet& set, const auto& settings, const auto& tensors) {
             detail::LambState lists;
             const bool keeps_masters =
                 set.model_params.empty() && set.params.front().scalar_type() == reduced_precision_dtype_;
             if (keeps_masters) set.model_params = set.params;
             for (at::Tensor& param : set.params) {
               auto& state = state_of<FusedMixedPrecisionLambParamState>(param);
               lists.exp_avgs.push_back(detail::state_like(param, state.exp_avg, at::kFloat));
               lists.exp_avg_sqs.push_back(detail::state_like(param, state.exp_avg_sq, at::kFloat));
               lists.updates.push_back(detail::state_like(param, state.update, at::kFloat));
               if (keeps_masters) param = detail::master_like(param, state.master_param);
             }
             detail::lamb_step(set, lists, global_norm, settings, tensors, [this] { mark_updated(); });
           });
}

void FusedMixedPrecisionLamb::update() {
  auto sets = launch_sets();
  kernels::StepSettings settings;
  const kernels::StepTensors tensors = set_scaling(settings);
  const at::Tensor global_norm = max_grad_norm_ > 0 ? detail::global_grad_norm(sets, settings, tensors) : at::Tensor();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) update_group(group, sets[group], global_norm);
  }
}

void FusedMixedPrecisionLamb::update_device_lr() { write_device_lrs(); }

void FusedMixedPrecisionLamb::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedMixedPrecisionLambParamState, FusedMixedPrecisionLambOptions>(archive, *this);
  save_group_states(archive);
}

void FusedMixedPrecisionLamb::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedMixedPrecisionLambParamState, FusedMixedPrecisionLambOptions>(archive, param_groups_);
  const auto fit = [&](FusedMixedPrecisionLambParamState& state, const at::Tensor& param, size_t, size_t) {
    if (param.scalar_type() != reduced_precision_dtype_) state.master_param.reset();  // no step would update it
  };
  detail::for_each_state<FusedMixedPrecisionLambParamState>(read, param_groups_, fit);
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedMixedPrecisionLamb::make_amp_handle(
    const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
