#include <apex_cpp/optimizers/fused_novograd.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <apex_cpp/optimizers/detail/class_functions.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedNovoGrad = "FusedNovoGrad";

void check(const FusedNovoGradOptions& options) {
  detail::check_no_amsgrad(kFusedNovoGrad, options);
  detail::check_moments(kFusedNovoGrad, options);
}

kernels::NovoGradControl control_of(const FusedNovoGradOptions& options) {
  TORCH_CHECK(options.norm_type() == 0 || options.norm_type() == 2, kFusedNovoGrad, ": norm_type is ", options.norm_type(),
              ". Use 2 (L2 norm) or 0 (largest magnitude).");
  kernels::NovoGradControl control;
  control.lr = options.lr();
  control.weight_decay = options.weight_decay();
  std::tie(control.beta1, control.beta2) = options.betas();
  control.eps = options.eps();
  control.bias_correction = options.bias_correction();
  control.grad_averaging = options.grad_averaging();
  control.reg_inside_moment = options.reg_inside_moment();
  control.norm_type = static_cast<kernels::NormType>(options.norm_type());
  return control;
}

}  // namespace

FusedNovoGrad::FusedNovoGrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedNovoGradOptions defaults)
    : FusedOptimizer(groups, defaults.clone(), {defaults.set_grad_none(), defaults.materialize_master_grads()}) {
  check(defaults);
}

at::Tensor FusedNovoGrad::exp_avg_sq(size_t group) const {
  return group < group_states().size() ? group_states()[group].exp_avg_sq : at::Tensor();
}

at::Tensor& FusedNovoGrad::norms_of(size_t group) {
  at::Tensor& norms = group_state(group).exp_avg_sq;
  const auto& params = param_groups_[group].params();
  const auto count = static_cast<int64_t>(params.size());
  const int64_t known = norms.defined() ? norms.numel() : 0;
  if (known == count) return norms;
  const at::Tensor more = at::zeros({count - known}, params.front().options().dtype(at::kFloat).requires_grad(false));
  return norms = known == 0 ? more : at::cat({norms, more});
}

void FusedNovoGrad::update_group(size_t group) {
  const auto& options = detail::options_of<FusedNovoGradOptions>(param_groups_[group]);
  const auto sets = launch_sets(group, /*split_fresh=*/true);
  run_step(group, sets, control_of(options), [&](const detail::LaunchSet& set, kernels::NovoGradControl control) {
    std::vector<at::Tensor> exp_avgs;
    for (const at::Tensor& param : set.params) {
      at::Tensor& exp_avg = state_of<FusedNovoGradParamState>(param).exp_avg;
      if (!exp_avg.defined()) exp_avg = at::zeros_like(param);
      exp_avgs.push_back(exp_avg);
    }
    control.first_run = set.fresh && !options.init_zero();
    at::Tensor& all_norms = norms_of(group);
    const bool whole_group = set.params.size() == param_groups_[group].params().size();
    if (whole_group) {
      kernels::multi_tensor_novograd(set.grads, set.params, exp_avgs, all_norms, set.model_params, control);
      return;
    }
    const at::Tensor index = at::tensor(set.positions).to(all_norms.device());
    const at::Tensor norms = all_norms.index_select(0, index).to(set.params.front().device());
    kernels::multi_tensor_novograd(set.grads, set.params, exp_avgs, norms, set.model_params, control);
    all_norms.index_copy_(0, index, norms.to(all_norms.device()));
  });
}

void FusedNovoGrad::update() {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) update_group(group);
  }
}

void FusedNovoGrad::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedNovoGradParamState, FusedNovoGradOptions>(archive, *this);
  save_group_states(archive);
}

void FusedNovoGrad::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<FusedNovoGradParamState, FusedNovoGradOptions>(archive, *this);
  load_group_states(archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedNovoGrad::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
