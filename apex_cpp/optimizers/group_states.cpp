#include <apex_cpp/optimizers/fused_optimizer.h>

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_set>
#include <utility>

// What belongs to parameter groups and to parameters: it stays with them where groups are added, removed or moved.
namespace apex::optimizers {

using detail::GroupState;

namespace {

using WeakParam = c10::weak_intrusive_ptr<c10::TensorImpl>;

WeakParam weak(const at::Tensor& param) { return WeakParam(param.getIntrusivePtr()); }

const void* options_of(const torch::optim::OptimizerParamGroup& group) {
  return group.has_options() ? &group.options() : nullptr;
}

void identify(GroupState& state, const torch::optim::OptimizerParamGroup& group) {
  state.options = options_of(group);
  state.params.clear();
  for (const at::Tensor& param : group.params()) state.params.push_back(weak(param));
}

bool has_options_of(const GroupState& state, const torch::optim::OptimizerParamGroup& group) {
  return state.options == options_of(group);
}

bool shares_params(const GroupState& state, const torch::optim::OptimizerParamGroup& group) {
  return std::any_of(group.params().begin(), group.params().end(), [&](const at::Tensor& param) {
    return std::any_of(state.params.begin(), state.params.end(),
                       [&](const WeakParam& each) { return each._unsafe_get_target() == param.unsafeGetTensorImpl(); });
  });
}

bool has_living_params(const GroupState& state) {
  return std::any_of(state.params.begin(), state.params.end(), [](const WeakParam& each) { return !each.expired(); });
}

}  // namespace

int64_t FusedOptimizer::steps_taken(size_t group) const {
  if (group >= param_groups_.size()) return 0;
  const GroupState* state = group_states()[group];
  return state ? state->step.value() : steps_at_start(group);
}

GroupState& FusedOptimizer::group_state(size_t group) {
  while (group_states_.size() < param_groups_.size()) group_states_.push_back(new_group_state(group_states_.size()));
  return group_states_.at(group);
}

GroupState FusedOptimizer::new_group_state(size_t group) const {
  GroupState state;
  state.step.set(steps_at_start(group));
  identify(state, param_groups_[group]);
  return state;
}

// A group keeps its state while it keeps a parameter. A group whose parameters were all replaced is known by its options, or
// else by its place, if state was moved to the new parameters. Neither alone tells: a new group may have options in the memory
// of those that are gone, or the place of another.
std::vector<const GroupState*> FusedOptimizer::group_states() const {
  std::vector<const GroupState*> found(param_groups_.size());
  if (!unique_groups_.is_due(param_groups_)) {
    for (size_t group = 0; group < std::min(found.size(), group_states_.size()); ++group) found[group] = &group_states_[group];
    return found;
  }
  std::unordered_set<const GroupState*> taken;
  const auto take = [&](const std::vector<GroupState>& states, const auto& fits) {
    for (size_t group = 0; group < found.size(); ++group) {
      for (size_t i = 0; i < states.size() && !found[group]; ++i) {
        if (fits(states[i], param_groups_[group]) && taken.insert(&states[i]).second) found[group] = &states[i];
      }
    }
  };
  take(group_states_,
       [](const GroupState& state, const auto& group) { return has_options_of(state, group) && shares_params(state, group); });
  take(group_states_, shares_params);
  take(removed_states_, shares_params);
  const auto was_given_state = [&](const torch::optim::OptimizerParamGroup& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const at::Tensor& param) { return state_.count(param.unsafeGetTensorImpl()) != 0; });
  };
  take(group_states_, [&](const GroupState& state, const auto& group) {
    return has_options_of(state, group) && (group.params().empty() || was_given_state(group));
  });
  for (size_t i = 0; i < std::min(found.size(), group_states_.size()); ++i) {
    const auto& group = param_groups_[i];
    const bool is_new = std::none_of(group_states_.begin(), group_states_.end(),
                                     [&](const GroupState& state) { return shares_params(state, group); });
    if (!found[i] && is_new && was_given_state(group) && taken.insert(&group_states_[i]).second) found[i] = &group_states_[i];
  }
  return found;
}

void FusedOptimizer::match_group_states() {
  if (group_states_.empty() && removed_states_.empty()) return;
  if (!unique_groups_.is_due(param_groups_)) return;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    detail::check_class(rules_, group, param_groups_[group].options());
  }
  const auto found = group_states();
  std::vector<GroupState> matched, removed;
  for (size_t group = 0; group < found.size(); ++group) {
    matched.push_back(found[group] ? *found[group] : new_group_state(group));
    identify(matched.back(), param_groups_[group]);
  }
  for (const auto* states : {&group_states_, &removed_states_}) {
    for (const GroupState& state : *states) {
      if (std::find(found.begin(), found.end(), &state) == found.end() && has_living_params(state)) removed.push_back(state);
    }
  }
  group_states_ = std::move(matched);
  removed_states_ = std::move(removed);
}

void FusedOptimizer::param_was_replaced(const at::Tensor& from, const at::Tensor& to) {
  if (state_.count(from.unsafeGetTensorImpl()) != 0)  // the caller moves this state to `to`
    with_state_.insert_or_assign(to.unsafeGetTensorImpl(), weak(to));
  for (auto* states : {&group_states_, &removed_states_}) {
    for (GroupState& state : *states) {
      for (auto& param : state.params) {
        if (param._unsafe_get_target() == from.unsafeGetTensorImpl()) param = weak(to);
      }
    }
  }
}

// A new parameter may get the address of one that is gone, and must not get its state.
void FusedOptimizer::drop_states_of_gone_params() {
  for (auto each = with_state_.begin(); each != with_state_.end();) {
    if (each->second.expired()) state_.erase(each->first);
    each = each->second.expired() ? with_state_.erase(each) : std::next(each);
  }
  for (const at::Tensor& param : amp::detail::params_of(param_groups_)) {  // a program may have moved states to them
    if (state_.count(param.unsafeGetTensorImpl()) != 0) with_state_.insert_or_assign(param.unsafeGetTensorImpl(), weak(param));
  }
}

// LibTorch refuses parameters that have state. Those of a group that was taken out have theirs.
void FusedOptimizer::add_group_with_states(const torch::optim::OptimizerParamGroup& group) {
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
  const auto put_back = c10::make_scope_exit([&] {
    for (auto& [key, state] : states) state_[key] = std::move(state);
  });
  for (const at::Tensor& param : group.params()) {
    const auto found = state_.find(param.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    states.emplace_back(found->first, std::move(found->second));
    state_.erase(found);
  }
  Optimizer::add_param_group(group);
}

}  // namespace apex::optimizers
