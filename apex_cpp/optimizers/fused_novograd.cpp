#include <apex_cpp/optimizers/fused_novograd.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include <algorithm>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedNovoGrad = "FusedNovoGrad";

void check(const detail::OptionsOwner& owner, const FusedNovoGradOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_no_amsgrad(owner, options);
  detail::check_moments(owner, options);
}

kernels::NovoGradSettings settings_of(const FusedNovoGradOptions& options) {
  auto settings = detail::moment_settings<kernels::NovoGradSettings>(options);
  settings.grad_averaging = options.grad_averaging();
  settings.reg_inside_moment = options.reg_inside_moment();
  settings.norm_type = static_cast<kernels::NormType>(options.norm_type());
  return settings;
}

}  // namespace

FusedNovoGrad::FusedNovoGrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedNovoGradOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(), detail::options_rules<FusedNovoGradOptions, FusedNovoGradParamState, check>(kFusedNovoGrad),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::on_host, defaults.master_storage()}) {}

void FusedNovoGrad::check_group(size_t group) const {
  const int64_t norm_type = detail::options_of<FusedNovoGradOptions>(param_groups_[group]).norm_type();
  TORCH_CHECK(norm_type == 0 || norm_type == 2, kFusedNovoGrad, ": norm_type is ", norm_type, " in group ", group,
              ". Use 2 (L2 norm) or 0 (largest magnitude).");
}

// ---- running norms: one tensor for each group; each parameter's state refers to its element ----

at::Tensor FusedNovoGrad::norm_of(const at::Tensor& param) const {
  const auto* state = static_cast<const FusedNovoGradParamState*>(own_state_of(param));
  return state ? state->norm : at::Tensor();
}

bool FusedNovoGrad::match_positions(size_t group, const at::Tensor& norms) const {
  const auto& params = param_groups_[group].params();
  if (!norms.defined() || norms.numel() != static_cast<int64_t>(params.size())) return false;
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor norm = norm_of(params[i]);
    if (norm.defined() && norm.const_data_ptr<float>() != norms.const_data_ptr<float>() + i) return false;
  }
  return norms.device() == params.front().device();
}

at::Tensor FusedNovoGrad::gathered_norms(size_t group) const {
  const auto& params = param_groups_[group].params();
  const at::Tensor none = at::zeros({1}, params.front().options().dtype(at::kFloat).requires_grad(false));
  std::vector<at::Tensor> norms;
  for (const at::Tensor& param : params) {
    const at::Tensor norm = norm_of(param);
    norms.push_back(norm.defined() ? norm.to(none.device()) : none);
  }
  return at::cat(norms);
}

at::Tensor FusedNovoGrad::norms_by_position(size_t group) const {
  if (group >= param_groups_.size() || param_groups_[group].params().empty()) return {};
  const auto* state = group_states()[group];
  if (!state) return {};
  const at::Tensor& norms = state->exp_avg_sq;
  return !norms.defined() || match_positions(group, norms) ? norms : gathered_norms(group);
}

at::Tensor FusedNovoGrad::exp_avg_sq(size_t group) const { return norms_by_position(group); }

void FusedNovoGrad::assign_norms(size_t group, const at::Tensor& norms) {
  const auto& params = param_groups_[group].params();
  const int64_t count = norms.defined() ? std::min(norms.numel(), static_cast<int64_t>(params.size())) : 0;
  for (int64_t i = 0; i < count; ++i) {
    if (has_state(params[i])) state_of<FusedNovoGradParamState>(params[i]).norm = norms.narrow(0, i, 1);
  }
}

// Parameters may have been added, removed or moved since the last step.
const at::Tensor& FusedNovoGrad::norms_of(size_t group) {
  at::Tensor& norms = group_state(group).exp_avg_sq;
  if (match_positions(group, norms)) return norms;
  norms = gathered_norms(group);
  assign_norms(group, norms);
  return norms;
}

// ---- a step ----

std::unique_ptr<torch::optim::OptimizerParamState> FusedNovoGrad::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedNovoGradParamState>();
  detail::state_like(param.param, state->exp_avg, state_dtype(param.param));
  return state;
}

void FusedNovoGrad::update_group(size_t group, const std::vector<detail::LaunchSet>& sets) {
  const auto& options = detail::options_of<FusedNovoGradOptions>(param_groups_[group]);
  const at::Tensor all_norms = norms_of(group);
  run_step(group, sets, settings_of(options), [&](const detail::LaunchSet& set, auto settings, const auto& tensors) {
    auto stays_fresh = c10::make_scope_exit([&] { forget_first_step(set); });  // where there is no memory for the norms
    std::vector<at::Tensor> exp_avgs;
    for (size_t i = 0; i < set.params.size(); ++i) {
      auto& state = state_of<FusedNovoGradParamState>(set.params[i]);
      exp_avgs.push_back(detail::state_like(set.params[i], state.exp_avg, state_dtype(set.params[i])));
      if (set.fresh) state.norm = all_norms.narrow(0, set.positions[i], 1);
    }
    settings.first_run = set.fresh && !options.init_zero();
    const bool whole_group = set.params.size() == param_groups_[group].params().size();
    const at::Tensor index =
        whole_group ? at::Tensor() : at::tensor(set.positions).to(all_norms.device(), /*non_blocking=*/true);
    const at::Tensor norms = whole_group ? all_norms : all_norms.index_select(0, index).to(set.params.front().device());
    if (set.fresh) norms.zero_();  // may hold the norm of an earlier parameter
    kernels::multi_tensor_novograd(set.grads, set.params, exp_avgs, norms, set.model_params, settings, tensors);
    stays_fresh.release();
    mark_updated();
    if (!whole_group) all_norms.index_copy_(0, index, norms.to(all_norms.device()));
  });
}

void FusedNovoGrad::update() {
  const auto sets = launch_sets(/*split_fresh=*/true);
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) update_group(group, sets[group]);
  }
}

void FusedNovoGrad::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedNovoGradParamState, FusedNovoGradOptions>(archive, *this);
  save_group_states(archive);
}

void FusedNovoGrad::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedNovoGradParamState, FusedNovoGradOptions>(archive, param_groups_, master_storage());
  restore(read, archive);
  for (size_t group = 0; group < param_groups_.size(); ++group) assign_norms(group, norms_by_position(group));
}

std::unique_ptr<torch::optim::Optimizer> FusedNovoGrad::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
