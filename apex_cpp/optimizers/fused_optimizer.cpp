#include <apex_cpp/optimizers/fused_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/optimizers/options.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <algorithm>

#include "kernels/capture.h"
#include "kernels/optimizers.h"

namespace apex::optimizers {

using detail::GroupState;
using detail::LaunchSet;

namespace {

constexpr const char* kGroupStatesKey = "group_states";
constexpr const char* kLoadedRemaindersKey = "loaded_remainders";  // of parameters without state; also in optimizer_content.cpp

std::string key_of(size_t group, size_t position) { return std::to_string(group) + "/" + std::to_string(position); }

at::TensorOptions on(c10::Device device, at::ScalarType dtype) { return at::TensorOptions().device(device).dtype(dtype); }

// What is kept beside a parameter: nothing, a copy in the model, or a remainder.
enum class Beside { nothing, copy, remainder };

Beside kind_of(const at::Tensor& beside) {
  if (!beside.defined()) return Beside::nothing;
  return beside.is_floating_point() ? Beside::copy : Beside::remainder;
}

// The set on this device with these properties. Adds it if there is none.
LaunchSet& set_of(std::vector<LaunchSet>& sets, c10::Device device, Beside kind, bool fresh) {
  for (LaunchSet& set : sets) {
    const Beside there = set.model_params.empty() ? Beside::nothing : kind_of(set.model_params.front());
    if (there == kind && set.fresh == fresh && set.params.front().device() == device) return set;
  }
  sets.emplace_back();
  sets.back().fresh = fresh;
  return sets.back();
}

[[noreturn]] void fail_in_part(const std::string& optimizer, const char* reason) {
  C10_THROW_ERROR(Error, optimizer + ": step() failed after it had updated a part of the parameters: " + reason +
                             ". Load a checkpoint before training goes on.");
}

}  // namespace

namespace detail {

int64_t StepCount::value() const { return tensor_.defined() ? tensor_.item<int32_t>() : host_; }

void StepCount::set(int64_t steps) {
  host_ = steps;
  if (tensor_.defined()) tensor_.fill_(steps);
}

const at::Tensor& StepCount::on_device(c10::Device device) {
  if (!tensor_.defined()) tensor_ = at::full({1}, host_, on(device, at::kInt));
  return tensor_;
}

}  // namespace detail

FusedOptimizer::FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               std::unique_ptr<torch::optim::OptimizerOptions> defaults, detail::OptionsRules rules,
                               Switches switches)
    : Optimizer(groups, std::move(defaults)),
      rules_(rules),
      set_grad_none_(switches.set_grad_none),
      materialize_master_grads_(switches.materialize_master_grads),
      counting_(switches.counting),
      master_storage_(switches.master_storage) {
  torch_compat::keep_options(param_groups_, groups);
  rules_.check_values({rules_.optimizer, std::nullopt, /*checks_lr=*/true}, *defaults_);
  check_groups();
}

// Finds groups that were added without a call of this class. The values of known groups are checked by each step.
void FusedOptimizer::check_groups() {
  if (!unique_groups_.is_due(param_groups_)) return;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& options = param_groups_[group].options();
    group < checked_groups_ ? detail::check_class(rules_, group, options) : detail::check_options(rules_, group, options);
  }
  list_params_once();
}

void FusedOptimizer::list_params_once() {
  drop_states_of_gone_params();
  match_group_states();
  unique_groups_.update(param_groups_);
  checked_groups_ = param_groups_.size();
}

void FusedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  amp::detail::ParamGroups groups = param_groups_;
  groups.push_back(group);
  amp::detail::check_one_group_each(groups);
  if (group.has_options()) detail::check_options(rules_, param_groups_.size(), group.options());
  drop_states_of_gone_params();
  match_group_states();  // a group that is gone leaves nothing to the new one
  add_group_with_states(group);
  torch_compat::keep_options(param_groups_, {group});
  list_params_once();
}

torch::Tensor FusedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  check_groups();
  const auto fresh = check_step();
  check_capture();
  if (stopped_on_host(!fresh.empty())) return loss;
  const auto drop_unused = c10::make_scope_exit([this] { new_states_.clear(); });
  for (const auto& each : fresh) new_states_[each.param.unsafeGetTensorImpl()] = new_state_with_remainder(each);
  prepare_groups();
  has_updated_ = false;
  try {
    update();
  } catch (const std::exception& error) {
    if (!has_updated_) throw;
    fail_in_part(rules_.optimizer, torch_compat::text_of(error));
  }
  for (const auto& each : fresh) {
    loaded_remainders_.erase(each.param);  // are in the states now
    with_state_.insert_or_assign(each.param.unsafeGetTensorImpl(),
                                 c10::weak_intrusive_ptr<c10::TensorImpl>(each.param.getIntrusivePtr()));
  }
  return loss;
}

void FusedOptimizer::zero_grad(std::optional<bool> set_to_none) { Optimizer::zero_grad(set_to_none.value_or(set_grad_none_)); }

// ---- what a step works on ----

const at::Tensor& FusedOptimizer::copy_of(size_t group, size_t position) const {
  static const at::Tensor kNone;
  const auto& copies = master_step.model_params;
  return group < copies.size() && position < copies[group].size() ? copies[group][position] : kNone;
}

const at::Tensor& FusedOptimizer::grad_of(size_t group, size_t position) const {
  const at::Tensor& copy = copy_of(group, position);
  return (master_step.grads_in_model && copy.defined() ? copy : param_groups_[group].params()[position]).grad();
}

std::vector<detail::SteppedParam> FusedOptimizer::stepped_params() const {
  std::vector<detail::SteppedParam> stepped;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& params = param_groups_[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor& grad = grad_of(group, i);
      if (grad.defined()) stepped.push_back({group, i, params[i], grad, copy_of(group, i)});
    }
  }
  return stepped;
}

void FusedOptimizer::check_values_of(size_t group) const {
  detail::check_options(rules_, group, param_groups_[group].options(), /*checks_lr=*/false);
}

std::vector<detail::SteppedParam> FusedOptimizer::check_step() {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    check_values_of(group);
    check_group(group);
  }
  const auto stepped = stepped_params();
  std::vector<detail::SteppedParam> fresh;
  for (const auto& each : stepped) {
    each.check();
    detail::check_splits(each.group, each.position, each.param, master_storage_);
    const auto found = state_.find(each.param.unsafeGetTensorImpl());
    if (found == state_.end() || found->second == nullptr) {  // a program's state()[key] inserts a null
      fresh.push_back(each);
      continue;
    }
    const torch::optim::OptimizerParamState& state = *found->second;
    TORCH_CHECK_TYPE(is_own_class(state), each.name(), " has state of the class ", c10::demangle(typeid(state).name()),
                     ", and ", rules_.optimizer, " needs ", c10::demangle(rules_.states->name()),
                     ". Put a state of that class there, or drop this one with "
                     "optimizer.state().erase(param.unsafeGetTensorImpl()): the parameter's next step is then its first.");
    static_cast<const ShapedParamState&>(state).check_shapes(each);
  }
  overlap_check_.check(stepped);
  return fresh;
}

std::unique_ptr<torch::optim::OptimizerParamState> FusedOptimizer::new_state_with_remainder(
    const detail::SteppedParam& param) const {
  auto state = new_state(param);
  if (detail::has_remainder(param.param.scalar_type(), master_storage_)) {
    const at::Tensor loaded = remainder_of(param.param);
    static_cast<ShapedParamState&>(*state).remainder =
        loaded.defined() ? loaded : at::zeros_like(param.param, detail::remainder_dtype(master_storage_));
  }
  return state;
}

ShapedParamState* FusedOptimizer::any_state_of(const at::Tensor& param) const {
  if (ShapedParamState* const here = own_state_of(param)) return here;
  const auto fresh = new_states_.find(param.unsafeGetTensorImpl());
  return fresh == new_states_.end() ? nullptr : static_cast<ShapedParamState*>(fresh->second.get());
}

at::Tensor FusedOptimizer::remainder_of(const at::Tensor& param) const {
  if (!detail::has_remainder(param.scalar_type(), master_storage_)) return {};
  if (ShapedParamState* state = any_state_of(param))
    return detail::state_like(param, state->remainder, detail::remainder_dtype(master_storage_));
  const at::Tensor* loaded = loaded_remainders_.find(param);
  return loaded ? amp::detail::in_layout_of(*loaded, param) : at::Tensor();
}

at::ScalarType FusedOptimizer::state_dtype(const at::Tensor& param) const {
  return keeps_masters_of(param.scalar_type()) ? at::kFloat : param.scalar_type();
}

bool FusedOptimizer::keeps_masters_of(at::ScalarType dtype) const {
  return dtype == at::kBFloat16 && master_storage_ != MasterStorage::float32;
}

at::Tensor FusedOptimizer::kept_master_of(const at::Tensor& param) const {
  if (master_storage_ == MasterStorage::stochastic && keeps_masters_of(param.scalar_type())) {
    return param.requires_grad() || has_state(param) ? param.detach().to(at::kFloat) : at::Tensor();
  }
  const at::Tensor remainder = remainder_of(param);
  return remainder.defined() ? detail::joined(param, remainder) : remainder;
}

bool FusedOptimizer::is_in_group(const at::Tensor& param) const {
  return std::any_of(param_groups_.begin(), param_groups_.end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const at::Tensor& each) { return each.is_same(param); });
  });
}

bool FusedOptimizer::load_kept_master(const at::Tensor& param, const at::Tensor& value) {
  if (at::Tensor* const master = own_master(param)) {
    const c10::InferenceMode off(false);
    const at::NoGradGuard no_grad;
    detail::master_like(param, *master).copy_(value);
    return true;
  }
  if (!keeps_masters_of(param.scalar_type()) || !(has_state(param) || is_in_group(param))) return false;
  if (master_storage_ == MasterStorage::stochastic) {
    const at::NoGradGuard no_grad;
    param.detach().copy_(value);
  } else {
    const c10::InferenceMode off(false);  // no step could write a remainder that was made in inference mode
    if (!remainder_of(param).defined())
      loaded_remainders_.set(param, at::zeros_like(param, detail::remainder_dtype(master_storage_)));
    detail::split_into(value, param, remainder_of(param));
  }
  return true;
}

LaunchSet& FusedOptimizer::add_to(std::vector<LaunchSet>& sets, size_t group, size_t position, bool fresh) {
  const at::Tensor& param = param_groups_[group].params()[position];
  const at::Tensor remainder = remainder_of(param), beside = remainder.defined() ? remainder : copy_of(group, position);
  LaunchSet& set = set_of(sets, param.device(), kind_of(beside), fresh);
  set.params.push_back(param);
  set.positions.push_back(static_cast<int64_t>(position));
  if (beside.defined()) set.model_params.push_back(beside);
  return set;
}

std::vector<LaunchSet> FusedOptimizer::launch_sets_of(size_t group, bool split_fresh) {
  std::vector<LaunchSet> sets;
  const auto& params = param_groups_[group].params();
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& grad = grad_of(group, i);
    if (!grad.defined()) continue;
    LaunchSet& set = add_to(sets, group, i, split_fresh && !has_state(params[i]));
    set.grads.push_back(amp::detail::in_layout_of(grad, params[i]));
  }
  return sets;
}

void FusedOptimizer::forget_first_step(const LaunchSet& set) {
  if (!set.fresh) return;
  for (const at::Tensor& param : set.params) state_.erase(param.unsafeGetTensorImpl());
}

std::vector<std::vector<LaunchSet>> FusedOptimizer::launch_sets(bool split_fresh) {
  std::vector<std::vector<LaunchSet>> sets;
  for (size_t group = 0; group < param_groups_.size(); ++group) sets.push_back(launch_sets_of(group, split_fresh));
  return sets;
}

std::vector<LaunchSet> FusedOptimizer::sets_with_state(size_t group) {
  std::vector<LaunchSet> sets;
  const auto& params = param_groups_[group].params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (has_state(params[i])) add_to(sets, group, i, /*fresh=*/false);
  }
  return sets;
}

// ---- CUDA graphs ----

// A graph repeats at each replay all that it captured, including work that belongs to a single step.
void FusedOptimizer::check_capture() const {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& params = param_groups_[group].params();
    if (params.empty() || !kernels::is_captured(device_of(group))) continue;
    for (size_t i = 0; i < params.size(); ++i) {
      TORCH_CHECK(!grad_of(group, i).defined() || has_state(params[i]), detail::name_of(group, i, params[i]),
                  " has no state yet, and this step is captured in a CUDA graph: each replay would create it again, and repeat "
                  "the first step. Run one step before the capture.");
    }
    if (counting_ != Counting::none) check_captured_count(group);
  }
}

void FusedOptimizer::check_captured_count(size_t group) const {
  const bool on_device = group < group_states_.size() && group_states_[group].step.is_on_device();
  TORCH_CHECK(on_device || counting_ == Counting::on_device, "The steps of group ", group,
              " are counted on the host, and this step is captured in a CUDA graph: each replay would be the same step again. "
              "Use an optimizer that counts on the device: FusedAdam with capturable, or FusedMixedPrecisionLamb.");
  TORCH_CHECK(
      on_device, "The step count of group ", group,
      " is not on the device yet, and this step is captured in a CUDA graph: each replay would start from it again. Run "
      "one step before the capture.");
  const double lr = param_groups_[group].options().get_lr();
  TORCH_CHECK(counting_ != Counting::on_device || group_states_[group].lr_written == lr, "The learning rate of group ", group,
              " became ", lr,
              " after it was written to the device, and this step is captured in a CUDA graph: each replay "
              "would write it again. Call update_device_lr() before the capture.");
}

// ---- scaling, and the count of steps ----

// A first step creates state, so the host must know whether the step is skipped.
bool FusedOptimizer::stopped_on_host(bool creates_state) const {
  return found_inf.defined() && (found_inf.is_cpu() || creates_state) && found_inf.item<float>() != 0;
}

// What the steps of groups need beside state and gradients, so that no group is updated where another finds no memory for it.
void FusedOptimizer::prepare_groups() {
  unscale_ = grad_scale.defined() ? grad_scale.reciprocal() : at::Tensor();
  const bool on_device = found_inf.defined() && !found_inf.is_cpu();
  is_stopped_ = on_device ? found_inf.ne(0).to(at::kInt).reshape({1}) : at::Tensor();
  if (counting_ != Counting::on_device) return;
  write_device_lrs();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) group_state(group).step.on_device(device_of(group));
  }
}

kernels::StepTensors FusedOptimizer::set_scaling(kernels::StepSettings& settings) const {
  kernels::StepTensors tensors;
  settings.grad_scale = master_step.grad_scale;
  tensors.grad_scale = unscale_;
  if (is_stopped_.defined()) tensors.found_inf = is_stopped_.clone();  // NovoGrad's kernel writes to that of its group
  return tensors;
}

bool FusedOptimizer::counts_on_device(size_t group) {
  return counting_ == Counting::on_device || is_stopped_.defined() || group_state(group).step.is_on_device();
}

c10::Device FusedOptimizer::device_of(size_t group) const { return param_groups_[group].params().front().device(); }

const at::Tensor& FusedOptimizer::device_lr(size_t group, double lr) {
  GroupState& state = group_state(group);
  if (!state.lr.defined()) {
    state.lr = at::full({1}, lr, on(device_of(group), at::kFloat));
  } else if (state.lr_written != lr) {
    state.lr.fill_(lr);
  }
  state.lr_written = lr;
  return state.lr;
}

void FusedOptimizer::write_device_lrs() {
  if (counting_ != Counting::on_device) return;
  match_group_states();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!param_groups_[group].params().empty()) device_lr(group, param_groups_[group].options().get_lr());
  }
}

kernels::StepTensors FusedOptimizer::begin_group(size_t group, kernels::MomentSettings& settings) {
  GroupState& state = group_state(group);
  kernels::StepTensors tensors = set_scaling(settings);
  if (counting_ == Counting::on_device) tensors.lr = device_lr(group, settings.lr);
  if (counts_on_device(group)) {
    tensors.step = state.step.on_device(device_of(group));
  } else {
    settings.step = state.step.value() + 1;
  }
  return tensors;
}

bool FusedOptimizer::can_count(const LaunchSet& set, const kernels::StepTensors& tensors) const {
  return detail::can_count(set.params.front().device(), tensors.step);
}

kernels::StepTensors FusedOptimizer::placed(const LaunchSet& set, bool counts, const kernels::StepTensors& tensors) const {
  return detail::placed_on(set.params.front().device(), tensors, counts);
}

void FusedOptimizer::end_group(size_t group, bool advanced, const kernels::StepTensors& tensors) {
  const at::Tensor& steps = tensors.step;
  if (!steps.defined()) return group_state(group).step.advance();
  if (advanced) return;
  if (tensors.found_inf.defined()) {
    steps.add_(tensors.found_inf.eq(0).to(steps.device(), at::kInt));
  } else {
    steps.add_(1);
  }
}

// ---- saving ----

void FusedOptimizer::save_group_states(torch::serialize::OutputArchive& archive) const {
  torch::serialize::OutputArchive all(archive.compilation_unit());
  const auto size = group_states_.empty() ? 0 : param_groups_.size();
  all.write("size", c10::IValue(static_cast<int64_t>(size)));
  for (size_t i = 0; i < size; ++i) {
    torch::serialize::OutputArchive one(archive.compilation_unit());
    one.write("step", c10::IValue(steps_taken(i)));
    if (const at::Tensor norms = norms_by_position(i); norms.defined()) one.write("exp_avg_sq", norms);
    all.write(std::to_string(i), one);
  }
  archive.write(kGroupStatesKey, all);
  save_loaded_remainders(archive);
}

void FusedOptimizer::save_loaded_remainders(torch::serialize::OutputArchive& archive) const {
  torch::serialize::OutputArchive all(archive.compilation_unit());
  bool has_any = false;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& params = param_groups_[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor* loaded = has_state(params[i]) ? nullptr : loaded_remainders_.find(params[i]);
      if (loaded) all.write(key_of(group, i), *loaded), has_any = true;
    }
  }
  if (has_any) archive.write(kLoadedRemaindersKey, all);
}

amp::detail::WeakTensorMap<at::Tensor> FusedOptimizer::read_loaded_remainders(torch::serialize::InputArchive& archive) const {
  amp::detail::WeakTensorMap<at::Tensor> read;
  torch::serialize::InputArchive all;
  if (!archive.try_read(kLoadedRemaindersKey, all)) return read;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& params = param_groups_[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      at::Tensor loaded;
      if (!all.try_read(key_of(group, i), loaded)) continue;
      const std::string name = detail::name_of(group, i, params[i]);
      const at::Tensor remainder = detail::loaded_remainder(params[i], loaded, master_storage_, name);
      read.set(params[i], detail::loaded_like(params[i], remainder, remainder.scalar_type(), name, "remainder"));
    }
  }
  return read;
}

std::vector<FusedOptimizer::SavedGroup> FusedOptimizer::read_group_states(torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive all;
  TORCH_CHECK(archive.try_read(kGroupStatesKey, all), "The saved optimizer has no '", kGroupStatesKey,
              "': it was not saved by a fused optimizer.");
  c10::IValue size, step;
  all.read("size", size);
  std::vector<SavedGroup> groups(size.toInt());
  for (size_t i = 0; i < groups.size(); ++i) {
    torch::serialize::InputArchive one;
    all.read(std::to_string(i), one);
    one.read("step", step);
    groups[i].steps = step.toInt();
    one.try_read("exp_avg_sq", groups[i].exp_avg_sq);
  }
  return groups;
}

void FusedOptimizer::restore_group(size_t group, const SavedGroup& saved) {
  GroupState& state = group_state(group);
  state.step.set(saved.steps);
  const bool has_norms = saved.exp_avg_sq.defined() && !param_groups_[group].params().empty();
  state.exp_avg_sq = has_norms ? saved.exp_avg_sq.to(device_of(group)) : at::Tensor();
}

void FusedOptimizer::restore(torch::optim::Optimizer& read, torch::serialize::InputArchive& archive, bool takes_remainders) {
  const auto saved = read_group_states(archive);
  auto remainders = takes_remainders ? read_loaded_remainders(archive) : amp::detail::WeakTensorMap<at::Tensor>();
  for (size_t i = 0; i < param_groups_.size(); ++i) detail::check_class(rules_, i, param_groups_[i].options());
  match_group_states();
  state_ = std::move(read.state());
  with_state_.clear();
  drop_states_of_gone_params();
  loaded_remainders_ = std::move(remainders);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    rules_.assign(param_groups_[i].options(), read.param_groups()[i].options());
    if (i < saved.size()) {
      restore_group(i, saved[i]);
    } else if (i < group_states_.size()) {
      restore_group(i, {steps_at_start(i), {}});  // had taken no step when it was saved
    }
  }
}

}  // namespace apex::optimizers
