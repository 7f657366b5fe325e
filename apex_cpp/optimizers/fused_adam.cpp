#include <apex_cpp/optimizers/fused_adam.h>

#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/detail/remainders.h>

#include <ATen/ops/empty_like.h>

#include <tuple>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedAdam = "FusedAdam";

void check(const detail::OptionsOwner& owner, const FusedAdamOptions& options) {
  detail::check_no_amsgrad(owner, options);
  TORCH_CHECK(
      !options.master_weights() || options.capturable(), owner,
      ": master_weights needs capturable. Set both, or let amp::initialize(model, optimizer, \"O2\") keep the masters.");
  detail::check_moments(owner, options);
}

}  // namespace

const char* name_of(MomentStorage storage) {
  switch (storage) {
    case MomentStorage::float32:
      return "float32";
    case MomentStorage::bfloat16:
      return "bfloat16";
    case MomentStorage::int8:
      return "int8";
  }
  return "";
}

MomentStorage moment_storage_named(const std::string& name) {
  for (const auto storage : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    if (name == name_of(storage)) return storage;
  }
  TORCH_CHECK_VALUE(false, "There is no moment_storage '", name, "'. Take float32, bfloat16 or int8.");
}

void FusedAdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  FusedAdamParamState float32 = *this;
  std::tie(float32.exp_avg, float32.exp_avg_sq) = float32_moments();
  float32.FusedParamState::serialize(archive);
}

std::pair<at::Tensor, at::Tensor> FusedAdamParamState::float32_moments() const {
  const auto values = [](const detail::CodedMoment& codes, const at::Tensor& moment, detail::Moment which) {
    if (codes.defined()) return codes.values(which);
    return moment.defined() ? moment.to(at::kFloat) : moment;
  };
  return {values(exp_avg_codes, exp_avg, detail::Moment::mean), values(exp_avg_sq_codes, exp_avg_sq, detail::Moment::square)};
}

void FusedAdamParamState::check_shapes(const detail::SteppedParam& of) const {
  FusedParamState::check_shapes(of);
  TORCH_CHECK(!exp_avg_codes.defined() || exp_avg_codes.sizes() == of.param.sizes(), of.name(),
              " has moments of 8 bits of shape ", exp_avg_codes.sizes(),
              " from earlier steps. Drop this state with optimizer.state().erase(param.unsafeGetTensorImpl()): the parameter's "
              "next step is then its first.");
}

void FusedAdamParamState::keep_master_as_remainder(const at::Tensor& param) {
  if (!remainder.defined() || !master_param.defined()) return;
  detail::write_remainder(master_param, param, remainder);
  master_param.reset();
}

void FusedAdamParamState::store_moments(at::ScalarType dtype) {
  if (!exp_avg.defined() || !exp_avg_sq.defined()) return;
  if (dtype != at::kByte) {
    for (at::Tensor* moment : {&exp_avg, &exp_avg_sq}) *moment = moment->to(dtype);
    return;
  }
  exp_avg_codes = detail::CodedMoment(exp_avg, detail::Moment::mean);
  exp_avg_sq_codes = detail::CodedMoment(exp_avg_sq, detail::Moment::square);
  exp_avg.reset();
  exp_avg_sq.reset();
}

namespace {

at::ScalarType dtype_of(MomentStorage storage) {
  if (storage == MomentStorage::int8) return at::kByte;
  return storage == MomentStorage::float32 ? at::kFloat : at::kBFloat16;
}

}  // namespace

kernels::AdamSettings detail::adam_settings(const FusedAdamOptions& options) {
  auto settings = detail::moment_settings<kernels::AdamSettings>(options);
  settings.adam_w_mode = options.adam_w_mode();
  return settings;
}

FusedAdam::FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults)
    : FusedOptimizer(groups, defaults.clone(), detail::options_rules<FusedAdamOptions, FusedAdamParamState, check>(kFusedAdam),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(),
                      defaults.capturable() ? Counting::on_device : Counting::on_host, defaults.master_storage()}),
      moment_dtype_(dtype_of(defaults.moment_storage())),
      master_weights_(defaults.master_weights()) {
  // Of the constructor's options, which stay; a loaded file replaces what the groups show.
  TORCH_CHECK_VALUE(!master_weights_ || master_storage() != MasterStorage::stochastic, kFusedAdam,
                    ": master_weights keeps float32 masters, and master_storage stochastic none. Leave one of them out.");
}

std::unique_ptr<torch::optim::OptimizerParamState> FusedAdam::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedAdamParamState>();
  moments_of(param.param, *state);
  if (may_own_master(param.param) && !param.copy.defined()) detail::master_like(param.param, state->master_param);
  return state;
}

std::pair<at::Tensor, at::Tensor> FusedAdam::moments_of(const at::Tensor& param, FusedAdamParamState& state) const {
  if (moment_dtype_ != at::kByte) {
    return {detail::state_like(param, state.exp_avg, moment_dtype_),
            detail::state_like(param, state.exp_avg_sq, moment_dtype_)};
  }
  for (auto* codes : {&state.exp_avg_codes, &state.exp_avg_sq_codes}) {
    if (!codes->defined()) *codes = detail::CodedMoment(param);
  }
  return {state.exp_avg_codes.codes_for(param, detail::Moment::mean),
          state.exp_avg_sq_codes.codes_for(param, detail::Moment::square)};
}

at::Tensor* FusedAdam::own_master(const at::Tensor& param) {
  return may_own_master(param) && has_state(param) ? &state_of<FusedAdamParamState>(param).master_param : nullptr;
}

void FusedAdam::use_own_masters(detail::LaunchSet& set) {
  if (!master_weights_ || !set.model_params.empty()) return;
  set.model_params = set.params;
  for (at::Tensor& param : set.params) param = detail::master_like(param, state_of<FusedAdamParamState>(param).master_param);
}

kernels::AdamSettings FusedAdam::settings_of(size_t group) const {
  auto settings = detail::adam_settings(detail::options_of<FusedAdamOptions>(param_groups_[group]));
  settings.rounds_params_at_random = master_storage() == MasterStorage::stochastic;
  settings.rounds_moments_at_random = moment_dtype_ == at::kBFloat16;
  return settings;
}

void FusedAdam::update() {
  auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (param_groups_[group].params().empty()) continue;
    run_step(group, sets[group], settings_of(group), [&](detail::LaunchSet& set, const auto& settings, const auto& tensors) {
      std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
      for (const at::Tensor& param : set.params) {
        const auto [exp_avg, exp_avg_sq] = moments_of(param, state_of<FusedAdamParamState>(param));
        exp_avgs.push_back(exp_avg);
        exp_avg_sqs.push_back(exp_avg_sq);
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
  const auto fit = [&](FusedAdamParamState& state, const at::Tensor& param, size_t group, size_t position) {
    state.keep_master_as_remainder(param);
    const bool steps_master = may_own_master(param) && !copy_of(group, position).defined();
    if (!steps_master) state.master_param.reset();  // it would be saved again, and taken for new by the next optimizer
    state.store_moments(moment_dtype_);
  };
  detail::for_each_state<FusedAdamParamState>(read, param_groups_, fit);
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedAdam::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
