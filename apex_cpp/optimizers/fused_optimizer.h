#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers/options.h>
#include <apex_cpp/optimizers/stepped_param.h>

namespace apex::kernels {
struct StepTensors;
namespace rules {
struct StepSettings;
struct MomentSettings;
struct AdamSettings;
}  // namespace rules
}  // namespace apex::kernels

namespace apex::optimizers {

namespace detail {

/// The number of steps that a parameter group has taken. It is kept on the host until the first step for which only the device
/// knows whether it was skipped. From then on it is a device tensor, which a CUDA graph advances at each replay.
class StepCount {
 public:
  /// Waits for the device if the count is on it.
  int64_t value() const;
  void set(int64_t steps);
  void advance() { ++host_; }
  /// int32, one element, on `device`.
  const at::Tensor& on_device(c10::Device device);
  bool is_on_device() const { return tensor_.defined(); }

 private:
  int64_t host_ = 0;
  at::Tensor tensor_;
};

/// What Apex stores in a param group besides its options.
struct GroupState {
  StepCount step;
  /// The group by its options and parameters, which identify it after groups were added, removed or moved.
  const void* options = nullptr;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> params;  // weak: no other parameter gets their addresses
  /// The learning rate of a capturable optimizer, float32 on the device, and the value last written to it.
  at::Tensor lr;
  double lr_written = 0;
  /// FusedNovoGrad: the running norm of each parameter of the group by position, float32.
  at::Tensor exp_avg_sq;
  /// FusedScheduleFreeAdamW: the sum of the averages' weights, and the largest learning rate.
  double weight_sum = 0, lr_max = -1;
};

/// Tensors on one device that one kernel call updates, matched by index. `model_params` is empty or as long as the others:
/// copies in the model, or remainders.
struct LaunchSet {
  std::vector<at::Tensor> grads, params, model_params;
  std::vector<int64_t> positions;  // of the params in their group
  bool fresh = false;              // the params have no state yet
};

}  // namespace detail

/// The base of the fused optimizers. A step takes all parameters of a group together: unscale, update, and, under amp's
/// levels with masters, the copy to the model's 16-bit parameters, in one pass over memory. LAMB, NovoGrad and LARS
/// make further passes, for norms; Muon takes one matrix after the other. Parameters without a gradient are skipped.
///
/// Parameters, gradients and state: float16, bfloat16 or float32 in any mix, dense, on CPU or CUDA; arithmetic is float32.
/// Groups may be empty. Step counts and norms belong to a group, as in Apex, and stay with it where groups are removed, put
/// back or moved: a group is known by its parameters. LibTorch's `parameters()` lists a tied parameter once for each module
/// that has it; the constructor keeps the first. A parameter in two groups is a ValueError, as in Python. If a loss
/// scaler on the device has set `found_inf`, steps that create state wait for it, such as the first, and so does each
/// step of Muon and FusedScheduleFreeAdamW. Each step of DistributedFusedAdam waits. No other step waits for a device.
/// Works with `amp::GradScaler` without unscaling in between, with torch's learning-rate schedulers, and with
/// `torch::save`.
///
/// With a `master_storage` other than float32 the optimizer keeps the masters of its bfloat16 parameters beside them, as
/// remainders, or keeps none. `amp::initialize` then makes none, at any level, and `amp::master_params` lists the parameters
/// themselves: their gradients are clipped and accumulated in bfloat16. A program that writes to such a parameter changes the
/// master by as much; the master stays within half a unit in the last place of the bfloat16.
///
/// CUDA graphs: take one step before the capture, which creates the state and the step count. A graph keeps the learning rate
/// of the captured step; FusedAdam with capturable and FusedMixedPrecisionLamb read rate and count on the device at each
/// replay.
///
/// A group's options must be of the class's own type. An option that the program has not set has the class's default, whatever
/// the optimizer's own; LibTorch's classes take the optimizer's from 2.12 on. There, LibTorch's own `add_param_group`, called
/// through a `torch::optim::Optimizer&`, drops the group's options. State follows its parameter's layout, also if `set_data`
/// changes it.
///
/// Errors of the constructors: TypeError for a group with options of another class, and the class's errors for their values.
/// Errors of `step`, before anything is changed: the same for groups that have changed since, whose learning rates may become
/// any; TypeError for options that were written after a cast to another class, and TypeError naming group and position of a
/// parameter whose state is of another class, where a null state counts as none. RuntimeError naming group and position of a
/// parameter that has a sparse gradient, has an unsupported dtype, has a gradient of an unsupported dtype, of another shape or
/// on another device, has gaps in its memory, has state of another shape, or shares memory with another parameter; and what
/// LibTorch throws where there is no memory for new states. Where the step of a later set of parameters fails, such as without
/// memory for its norms, the error says that parameters were updated in part.
/// While a CUDA graph is captured, RuntimeError for a step that each replay would repeat as the same step: a parameter's first
/// step, a step counted on the host, and a step whose learning rate is not on the device yet.
///
/// Errors of `load`, before anything is changed:
/// RuntimeError if another class saved the archive, or an optimizer with other groups; RuntimeError naming a parameter whose
/// saved state has another shape. Loading casts the state and lays it out like its parameter. A parameter that was saved
/// without state has none after loading. Options that apply to the whole optimizer, such as max_grad_norm, stay those of the
/// constructor, as in Apex, whatever the options of the groups show after a load.
class FusedOptimizer : public torch::optim::Optimizer, public amp::StepSupportsAmpScaling, public amp::StepsMasters {
 public:
  /// Calls the closure, if given, with gradients enabled; then steps. Returns the closure's value.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Drops the gradients if `set_to_none`, otherwise zeroes them. The default is the option set_grad_none.
  void zero_grad(std::optional<bool> set_to_none = std::nullopt);

  /// Adds a group with its own options, or the optimizer's. The parameters of a group that was taken out bring their states and
  /// their count of steps (not with DistributedFusedAdam, which refuses them). Errors, before anything is changed: ValueError
  /// for a parameter that is in another group, and the class's errors for the options.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// The number of steps that a group has taken, without skipped ones (Apex: `group["step"]`); 0 if there is no such group.
  /// Waits for the device if the count is on it. FusedSGD, FusedAdagrad, FusedLion, FusedLARS and Muon count none: always 0.
  int64_t steps_taken(size_t group = 0) const;

  bool materialize_master_grads() const override { return materialize_master_grads_; }
  bool keeps_masters_of(at::ScalarType dtype) const override;
  at::Tensor kept_master_of(const at::Tensor& param) const override;
  bool load_kept_master(const at::Tensor& param, const at::Tensor& value) override;
  void param_was_replaced(const at::Tensor& from, const at::Tensor& to) override;

 protected:
  /// Where the steps of a group are counted. With on_device the learning rate is on the device too.
  enum class Counting { none, on_host, on_device };

  struct Switches {
    bool set_grad_none = true;
    bool materialize_master_grads = true;
    Counting counting = Counting::on_host;
    MasterStorage master_storage = MasterStorage::float32;
  };

  FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults, detail::OptionsRules rules, Switches switches);

  /// Errors: those of the constructor for the group's options, except for the rate.
  void check_values_of(size_t group) const;
  /// Throws the class's own errors of a step, before anything is changed.
  virtual void check_group(size_t /*group*/) const {}
  /// The step count that a group starts with.
  virtual int64_t steps_at_start(size_t /*group*/) const { return 0; }
  /// Where the state of a parameter has the float32 master that the class steps in its place; null if there is none.
  virtual at::Tensor* own_master(const at::Tensor& /*param*/) { return nullptr; }
  /// The tensor to save as the group's `exp_avg_sq`.
  virtual at::Tensor norms_by_position(size_t /*group*/) const { return {}; }
  /// The state of a parameter that takes its first step, with all its tensors.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const = 0;
  /// Updates all parameters. They and their gradients have been checked, and there is memory for new states.
  virtual void update() = 0;

  /// The model's parameter that receives a copy of the parameter at `position` of `group`; undefined if there is none.
  const at::Tensor& copy_of(size_t group, size_t position) const;
  /// The gradient of the parameter at `position` of `group`; undefined if there is none.
  const at::Tensor& grad_of(size_t group, size_t position) const;
  /// The parameters of each group that have a gradient, in one set per device, for those with a copy in the model, with a
  /// remainder and without both, and, with `split_fresh`, for those with and without state. Gradients in another layout than
  /// their parameters' are copied.
  std::vector<std::vector<detail::LaunchSet>> launch_sets(bool split_fresh = false);
  /// The parameters of a group that have state, in such sets, without gradients.
  std::vector<detail::LaunchSet> sets_with_state(size_t group);

  MasterStorage master_storage() const { return master_storage_; }
  /// The dtype of a state that has the dtype of its parameter: a master's is float32.
  at::ScalarType state_dtype(const at::Tensor& param) const;

  /// The state of a parameter. Where there is none, it becomes that of new_state, or an empty one.
  template <class State>
  State& state_of(const at::Tensor& param) {
    auto& state = state_[param.unsafeGetTensorImpl()];
    if (state == nullptr) state = std::move(new_states_[param.unsafeGetTensorImpl()]);
    if (state == nullptr) state = std::make_unique<State>();
    return static_cast<State&>(*state);
  }
  /// Null if there is none. States of another class, which a program has put there, are errors of the step, and none elsewhere.
  ShapedParamState* own_state_of(const at::Tensor& param) const {
    const auto found = state_.find(param.unsafeGetTensorImpl());
    const bool is_own = found != state_.end() && found->second != nullptr && is_own_class(*found->second);
    return is_own ? static_cast<ShapedParamState*>(found->second.get()) : nullptr;
  }
  bool has_state(const at::Tensor& param) const { return own_state_of(param) != nullptr; }

  detail::GroupState& group_state(size_t group);
  /// The learning rate on the device. It is written only when it changes: a captured write would repeat at each replay.
  const at::Tensor& device_lr(size_t group, double lr);
  /// Does nothing unless steps are counted on the device.
  void write_device_lrs();
  /// The states by group; null for a group without.
  std::vector<const detail::GroupState*> group_states() const;

  /// Passes on found_inf and the gradients' scale, as the loss scaler and amp have set them.
  kernels::StepTensors set_scaling(kernels::rules::StepSettings& settings) const;
  /// Calls `call(set)` for each set, which updates its parameters. The call may change sets that are not const.
  template <class Sets, class Call>
  void update_sets(Sets&& sets, const Call& call) {
    for (auto& set : sets) {
      call(set);
      mark_updated();
    }
  }
  /// Called where a set is not updated: drops the states of a set that is `fresh`, so that its next step is a first one again.
  void forget_first_step(const detail::LaunchSet& set);
  /// Called once parameters are updated: an error of this step then says so.
  void mark_updated() { has_updated_ = true; }
  /// Calls `call(set, settings, tensors)` for each set, with the group's step count in the settings or the tensors, and
  /// advances the count by one for all sets together, unless the step is stopped. The call may change sets that are not const.
  template <class Sets, class Settings, class Call>
  void run_step(size_t group, Sets&& sets, Settings settings, const Call& call) {
    const auto tensors = begin_group(group, settings);
    const bool by_kernel = sets.size() == 1 && can_count(sets.front(), tensors);
    update_sets(sets, [&](auto& set) { call(set, settings, placed(set, by_kernel, tensors)); });
    end_group(group, by_kernel, tensors);
  }

  void save_group_states(torch::serialize::OutputArchive& archive) const;
  /// Replaces options and state by those in `read`, and the group states by those in the archive.
  /// `takes_remainders`: also the remainders of parameters that had taken no step, which a sharded optimizer has no place for.
  void restore(torch::optim::Optimizer& read, torch::serialize::InputArchive& archive, bool takes_remainders = true);

 private:
  /// The state of a group in an archive.
  struct SavedGroup {
    int64_t steps;
    at::Tensor exp_avg_sq;
  };

  void check_groups();
  void list_params_once();
  void drop_states_of_gone_params();
  void add_group_with_states(const torch::optim::OptimizerParamGroup& group);
  detail::GroupState new_group_state(size_t group) const;
  void match_group_states();
  std::vector<detail::SteppedParam> stepped_params() const;
  std::unique_ptr<torch::optim::OptimizerParamState> new_state_with_remainder(const detail::SteppedParam& param) const;
  bool is_own_class(const torch::optim::OptimizerParamState& state) const {
    return typeid(state) == *rules_.states || rules_.are_states(state);  // a program may derive its own
  }
  /// The parameter's state, also that of its first step; null if there is none.
  ShapedParamState* any_state_of(const at::Tensor& param) const;
  bool is_in_group(const at::Tensor& param) const;
  /// Adds a parameter and what is kept beside it to its set, without a gradient. Returns the set.
  detail::LaunchSet& add_to(std::vector<detail::LaunchSet>& sets, size_t group, size_t position, bool fresh);
  std::vector<detail::LaunchSet> launch_sets_of(size_t group, bool split_fresh);
  /// The remainder of a parameter that is stored with one; undefined otherwise.
  at::Tensor remainder_of(const at::Tensor& param) const;
  /// Returns the parameters that take their first step.
  std::vector<detail::SteppedParam> check_step();
  static std::vector<SavedGroup> read_group_states(torch::serialize::InputArchive& archive);
  void save_loaded_remainders(torch::serialize::OutputArchive& archive) const;
  amp::detail::WeakTensorMap<at::Tensor> read_loaded_remainders(torch::serialize::InputArchive& archive) const;
  void restore_group(size_t group, const SavedGroup& saved);
  /// `creates_state`: whether the step is a first one of a parameter.
  bool stopped_on_host(bool creates_state) const;
  void check_capture() const;
  void check_captured_count(size_t group) const;
  c10::Device device_of(size_t group) const;
  void prepare_groups();
  bool counts_on_device(size_t group);
  kernels::StepTensors begin_group(size_t group, kernels::rules::MomentSettings& settings);
  /// Whether the set's kernel can advance the step count itself.
  bool can_count(const detail::LaunchSet& set, const kernels::StepTensors& tensors) const;
  /// The tensors on the set's device. A kernel that must not count the step gets a copy of the count to advance.
  kernels::StepTensors placed(const detail::LaunchSet& set, bool counts, const kernels::StepTensors& tensors) const;
  void end_group(size_t group, bool advanced, const kernels::StepTensors& tensors);

  detail::OptionsRules rules_;
  std::vector<detail::GroupState> group_states_, removed_states_;  // the second: of groups that were taken out
  std::unordered_map<const void*, std::unique_ptr<torch::optim::OptimizerParamState>> new_states_;  // within a step
  // The parameters that have state: weak, so that no other parameter gets their addresses, which are the keys of the states.
  std::unordered_map<void*, c10::weak_intrusive_ptr<c10::TensorImpl>> with_state_;
  amp::detail::WeakTensorMap<at::Tensor> loaded_remainders_;  // of parameters that have no state yet
  amp::detail::UniqueParamGroups unique_groups_;
  size_t checked_groups_ = 0;  // the first groups, whose options' values were checked when the groups were added
  detail::OverlapCheck overlap_check_;
  // Of this step: the inverse of grad_scale, found_inf on a device, and whether parameters are updated.
  at::Tensor unscale_, is_stopped_;
  bool has_updated_ = false;
  bool set_grad_none_;
  bool materialize_master_grads_;
  Counting counting_;
  MasterStorage master_storage_;
};

}  // namespace apex::optimizers
