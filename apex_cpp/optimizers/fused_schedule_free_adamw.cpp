#include <apex_cpp/optimizers/fused_schedule_free_adamw.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kScheduleFree = "FusedScheduleFreeAdamW";
constexpr const char* kSumsKey = "schedule_free";

void check(const detail::OptionsOwner& owner, const FusedScheduleFreeAdamWOptions& options) {
  detail::check_rounds_to_nearest(owner, options);
  detail::check_moments(owner, options);
  detail::check_not_negative(owner, "warmup_steps", static_cast<double>(options.warmup_steps()));
  detail::check_not_negative(owner, "r", options.r());
  TORCH_CHECK_VALUE(std::get<0>(options.betas()) > 0, owner,
                    ": the first of betas must be above 0: the average cannot be computed from parameters that have no part of "
                    "it.");
}

// The rate of step `step`, which counts from 1.
double scheduled_lr(const FusedScheduleFreeAdamWOptions& options, int64_t step) {
  const bool warms_up = step <= options.warmup_steps();
  return options.lr() * (warms_up ? static_cast<double>(step) / static_cast<double>(options.warmup_steps()) : 1.0);
}

kernels::ScheduleFreeSettings settings_of(const FusedScheduleFreeAdamWOptions& options, int64_t step) {
  kernels::ScheduleFreeSettings settings;
  settings.lr = scheduled_lr(options, step);
  settings.weight_decay = options.weight_decay();
  std::tie(settings.beta1, settings.beta2) = options.betas();
  settings.eps = options.eps();
  settings.step = step;
  return settings;
}

}  // namespace

FusedScheduleFreeAdamW::FusedScheduleFreeAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                               FusedScheduleFreeAdamWOptions defaults)
    : FusedOptimizer(
          groups, defaults.clone(),
          detail::options_rules<FusedScheduleFreeAdamWOptions, FusedScheduleFreeAdamWParamState, check>(kScheduleFree),
          {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::on_host, defaults.master_storage()}) {}

// ---- the modes ----

void FusedScheduleFreeAdamW::set_training(bool training) {
  amp::detail::check_not_original(*this, "train() or eval() was called on");
  const bool moves = training != is_training_ && !state_.empty();  // x, y and z are equal before the first step
  // A move divides by the first of betas, so that by values which the class does not take it would lose the weights.
  for (size_t group = 0; moves && group < param_groups_.size(); ++group) check_values_of(group);
  auto* handle = moves ? dynamic_cast<amp::detail::AmpOptimizerBase*>(this) : nullptr;
  if (handle) {
    handle->change_weights(training ? "train" : "eval", [&] { move_params(training); });
  } else if (moves) {
    move_params(training);
  }
  is_training_ = training;
}

void FusedScheduleFreeAdamW::move_params(bool to_y) {
  const at::NoGradGuard no_grad;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const double beta1 = std::get<0>(detail::options_of<FusedScheduleFreeAdamWOptions>(param_groups_[group]).betas());
    kernels::LerpSettings settings;
    settings.weight = to_y ? 1 - beta1 : 1 - 1 / beta1;
    for (const auto& set : sets_with_state(group)) {
      std::vector<at::Tensor> zs;
      for (const at::Tensor& param : set.params) {
        zs.push_back(detail::master_like(param, state_of<FusedScheduleFreeAdamWParamState>(param).z));
      }
      kernels::multi_tensor_lerp(zs, set.params, set.model_params, settings);
    }
  }
}

// ---- a step ----

torch::Tensor FusedScheduleFreeAdamW::step(LossClosure closure) {
  TORCH_CHECK(is_training_,
              "FusedScheduleFreeAdamW: step() was called in eval mode, in which the parameters are averages. Call the "
              "optimizer's train() before training, and its eval() before an evaluation.");
  return FusedOptimizer::step(std::move(closure));
}

std::unique_ptr<torch::optim::OptimizerParamState> FusedScheduleFreeAdamW::new_state(const detail::SteppedParam& param) const {
  auto state = std::make_unique<FusedScheduleFreeAdamWParamState>();
  state->z = kept_master_of(param.param);  // where weights were loaded, with the bits that bfloat16 lacks
  detail::master_like(param.param, state->z);
  detail::state_like(param.param, state->exp_avg_sq, at::kFloat);
  return state;
}

void FusedScheduleFreeAdamW::update_group(size_t group, const std::vector<detail::LaunchSet>& sets) {
  const auto& options = detail::options_of<FusedScheduleFreeAdamWOptions>(param_groups_[group]);
  detail::GroupState& state_of_group = group_state(group);
  const int64_t step = state_of_group.step.value() + 1;
  auto settings = settings_of(options, step);
  const double lr_max = std::max(settings.lr, state_of_group.lr_max);
  const double weight = std::pow(static_cast<double>(step), options.r()) * std::pow(lr_max, options.weight_lr_power());
  const double weight_sum = state_of_group.weight_sum + weight;
  settings.average_weight = weight_sum == 0 ? 0 : weight / weight_sum;
  kernels::StepTensors tensors = set_scaling(settings);
  tensors.found_inf.reset();  // is 0
  update_sets(sets, [&](const detail::LaunchSet& set) {
    std::vector<at::Tensor> zs, exp_avg_sqs;
    for (const at::Tensor& param : set.params) {
      auto& state = state_of<FusedScheduleFreeAdamWParamState>(param);
      zs.push_back(detail::master_like(param, state.z));
      exp_avg_sqs.push_back(detail::state_like(param, state.exp_avg_sq, at::kFloat));
    }
    kernels::multi_tensor_schedule_free_adamw(set.grads, set.params, zs, exp_avg_sqs, set.model_params, settings,
                                              detail::placed_on(set.params.front().device(), tensors));
  });
  state_of_group.lr_max = lr_max;
  state_of_group.weight_sum = weight_sum;
  state_of_group.step.advance();
}

void FusedScheduleFreeAdamW::update() {
  if (found_inf.defined() && found_inf.item<float>() != 0) return;
  const auto sets = launch_sets();
  for (size_t group = 0; group < param_groups_.size(); ++group) update_group(group, sets[group]);
}

// ---- saving ----

void FusedScheduleFreeAdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedScheduleFreeAdamWParamState, FusedScheduleFreeAdamWOptions>(archive, *this);
  save_group_states(archive);
  torch::serialize::OutputArchive all(archive.compilation_unit());
  std::vector<double> weight_sums, lr_maxs;
  for (const auto* state : group_states()) {
    const detail::GroupState none;
    weight_sums.push_back((state ? *state : none).weight_sum);
    lr_maxs.push_back((state ? *state : none).lr_max);
  }
  all.write("weight_sum", c10::IValue(weight_sums));
  all.write("lr_max", c10::IValue(lr_maxs));
  all.write("train_mode", c10::IValue(is_training_));
  archive.write(kSumsKey, all);
}

void FusedScheduleFreeAdamW::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedScheduleFreeAdamWParamState, FusedScheduleFreeAdamWOptions>(archive, param_groups_,
                                                                                                      master_storage());
  torch::serialize::InputArchive all;
  c10::IValue weight_sum, lr_max, train_mode;
  archive.read(kSumsKey, all);
  all.read("weight_sum", weight_sum);
  all.read("lr_max", lr_max);
  all.read("train_mode", train_mode);
  const auto weight_sums = weight_sum.toDoubleVector(), lr_maxs = lr_max.toDoubleVector();
  TORCH_CHECK(lr_maxs.size() == weight_sums.size(), "The saved FusedScheduleFreeAdamW has ", weight_sums.size(),
              " sums of weights and ", lr_maxs.size(), " learning rates. The file is damaged: load another one.");
  const bool training = train_mode.toBool();
  restore(read, archive);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    const bool is_saved = i < weight_sums.size();
    group_state(i).weight_sum = is_saved ? weight_sums[i] : 0;
    group_state(i).lr_max = is_saved ? lr_maxs[i] : -1;
  }
  is_training_ = training;
}

std::unique_ptr<torch::optim::Optimizer> FusedScheduleFreeAdamW::make_amp_handle(
    const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
