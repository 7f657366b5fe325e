#include <apex_cpp/amp/casts.h>
#include <apex_cpp/optimizers/muon.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include <ATen/ops/addmm.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

// The operators of torch/optim/_muon.py in its order, so that the bits are the same.
namespace apex::optimizers {
namespace {

constexpr const char* kMuon = "Muon";
constexpr const char* kOriginal = "original";
constexpr const char* kMatchRmsAdamw = "match_rms_adamw";

void check(const detail::OptionsOwner& owner, const MuonOptions& options) {
  detail::check_float32_masters(owner, options);
  detail::check_lr(owner, options.lr());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
  detail::check_not_negative(owner, "momentum", options.momentum());
  detail::check_not_negative(owner, "eps", options.eps());
  TORCH_CHECK_VALUE(options.ns_steps() >= 0 && options.ns_steps() < 100, owner, ": ns_steps must be in [0, 100), got ",
                    options.ns_steps(), ".");
  TORCH_CHECK_VALUE(options.adjust_lr_fn() == kOriginal || options.adjust_lr_fn() == kMatchRmsAdamw, owner,
                    ": adjust_lr_fn must be 'original' or 'match_rms_adamw', got '", options.adjust_lr_fn(), "'.");
}

void check_matrices(size_t group, const std::vector<at::Tensor>& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK_VALUE(params[i].dim() == 2, detail::name_of(group, i, params[i]),
                      " is not a matrix. Muon takes 2-D parameters: give this one to FusedAdam, and both optimizers to "
                      "amp::initialize.");
  }
}

// A matrix with the singular vectors of `update` and singular values near 1, bfloat16.
at::Tensor orthogonalized(const at::Tensor& update, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool is_tall = update.size(0) > update.size(1);
  at::Tensor x = update.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp(options.eps()));
  for (int64_t step = 0; step < options.ns_steps(); ++step) {
    const at::Tensor gram = x.matmul(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c), x, /*beta=*/a);
  }
  return is_tall ? x.t() : x;
}

double adjusted_lr(const MuonOptions& options, const at::Tensor& param) {
  const auto rows = static_cast<double>(param.size(0)), columns = static_cast<double>(param.size(1));
  const double ratio =
      options.adjust_lr_fn() == kOriginal ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
  return options.lr() * ratio;
}

// `grad`: unscaled, of the parameter's dtype. Takes all memory before it changes anything.
void step_matrix(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& momentum_buffer,
                 const MuonOptions& options) {
  const at::Tensor momentum = momentum_buffer.lerp(grad, 1 - options.momentum());
  const at::Tensor update = options.nesterov() ? grad.lerp(momentum, options.momentum()) : momentum;
  const at::Tensor direction = orthogonalized(update, options);
  at::Tensor next = param.mul(1 - options.lr() * options.weight_decay());
  next.add_(direction, -adjusted_lr(options, param));
  momentum_buffer.copy_(momentum);
  param.copy_(next);
}

// `factor`: undefined for 1.
at::Tensor unscaled(const at::Tensor& grad, const at::Tensor& factor, at::ScalarType dtype) {
  return (factor.defined() ? grad.to(at::kFloat).mul(factor) : grad).to(dtype);
}

}  // namespace

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults)
    : FusedOptimizer(groups, defaults.clone(), detail::options_rules<MuonOptions, MuonParamState, check>(kMuon),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none}) {
  for (size_t group = 0; group < param_groups_.size(); ++group) check_matrices(group, param_groups_[group].params());
}

void Muon::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  check_matrices(param_groups_.size(), group.params());
  FusedOptimizer::add_param_group(group);
}

void Muon::check_group(size_t group) const { check_matrices(group, param_groups_[group].params()); }

std::unique_ptr<torch::optim::OptimizerParamState> Muon::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<MuonParamState>();
  detail::state_like(param.param, state->momentum_buffer, param.param.scalar_type());
  return state;
}

void Muon::update() {
  const amp::disable_casts casts_off;
  if (found_inf.defined() && found_inf.item<float>() != 0) return;
  kernels::StepSettings settings;
  const kernels::StepTensors tensors = set_scaling(settings);
  const bool scales = settings.grad_scale != 1 || tensors.grad_scale.defined();
  const auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& options = detail::options_of<MuonOptions>(param_groups_[group]);
    for (const auto& set : sets[group]) {
      const at::Tensor factor = scales ? detail::grad_factor(set.params.front().device(), settings, tensors) : at::Tensor();
      for (size_t i = 0; i < set.params.size(); ++i) {
        const at::Tensor& param = set.params[i];
        at::Tensor& buffer = state_of<MuonParamState>(param).momentum_buffer;
        detail::state_like(param, buffer, param.scalar_type());
        if (param.numel() == 0) continue;
        step_matrix(param, unscaled(set.grads[i], factor, param.scalar_type()), buffer, options);
        mark_updated();
      }
      if (!set.model_params.empty()) kernels::multi_tensor_copy(set.params, set.model_params);
    }
  }
}

void Muon::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
  save_group_states(archive);
}

void Muon::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<MuonParamState, MuonOptions>(archive, param_groups_);
  restore(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> Muon::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
