#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers/options.h>
#include <apex_cpp/optimizers/stepped_param.h>

namespace apex::kernels {
struct StepControl;
struct MomentControl;
}  // namespace apex::kernels

namespace apex::optimizers {

namespace detail {

/// How many steps a parameter group has taken. On the host, until a step is taken that only the device knows whether it was
/// skipped; from then on in a device tensor, which a CUDA graph advances at each replay.
class StepCount {
 public:
  /// Waits for the device if the count is there.
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

/// What Apex keeps in a param group beside its options.
struct GroupState {
  StepCount step;
  /// The learning rate of a capturable optimizer, float32 on the device, and the value that was written there last.
  at::Tensor lr;
  double lr_written = 0;
  /// FusedNovoGrad: the running norm of each parameter of the group by position, float32.
  at::Tensor exp_avg_sq;
};

/// Tensors of one device that one kernel call updates, matched by index. `model_params` is empty or as long as the others.
struct LaunchSet {
  std::vector<at::Tensor> grads, params, model_params;
  std::vector<int64_t> positions;  // of the params in their group
  bool fresh = false;              // the params have no state yet
};

}  // namespace detail

/// What the fused optimizers share. A step is one pass over memory for all parameters of a group: unscale, update, and under
/// amp's levels with masters the copy to the model's 16-bit parameters too. Parameters without a gradient are left alone.
///
/// Parameters, gradients and state: float16, bfloat16 or float32 in any mix, dense, on any device; arithmetic is float32.
/// Empty groups are fine. Tied parameters, which LibTorch's `parameters()` lists once for each module that has them, are listed
/// once from the construction on; one in two groups is a ValueError, as in Python. No step waits for a device, unless a loss
/// scaler on that device has set `found_inf` before the first. Works with `amp::GradScaler` without unscaling in between, with
/// torch's learning-rate schedulers, and with `torch::save`.
///
/// CUDA graphs: take one step before the capture, in which state and count are made. A graph keeps the rate of the captured
/// step; FusedAdam with capturable and FusedMixedPrecisionLamb read rate and count on the device at each replay.
///
/// A group's options are of the class's own type. State follows its parameter's layout, also where `set_data` changes it.
///
/// Errors of the constructors: TypeError for a group with options of another class, and what the class says of their values.
/// Errors of `step`, before anything is changed: the same where groups have changed since.
/// RuntimeError that names group and position of a parameter with a sparse gradient, of another dtype or with a gradient of
/// one, with a gradient of another shape or on another device, with gaps in its memory, of another shape than its state, or
/// that shares memory with another. In a CUDA graph, RuntimeError for a step that each replay would take as the same one again:
/// a parameter's first, one of an optimizer that counts on the host, the first with a rate that is not on the device yet.
/// Errors of `load`, before anything is changed: RuntimeError for what another class has saved, or an optimizer over other
/// groups, and naming a parameter whose state has another shape. State is cast and laid out as the parameter here has it, and
/// a parameter that had none when it was saved has none then.
class FusedOptimizer : public torch::optim::Optimizer, public amp::StepSupportsAmpScaling, public amp::StepsMasters {
 public:
  /// Evaluates the closure, if there is one, with gradients enabled, steps, and returns the closure's value.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Drops the gradients, or zeroes them; without an argument as the option set_grad_none says.
  void zero_grad(std::optional<bool> set_to_none = std::nullopt);

  /// Adds a group with options of its own, or the optimizer's. Errors, before anything is changed: ValueError for a parameter
  /// that another group has, and what the class says of the options.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Steps that a group has taken (Apex: `group["step"]`). A skipped step is none. Waits for the device if a step there may
  /// have been skipped since.
  int64_t steps_taken(size_t group = 0) const;

  bool materialize_master_grads() const override { return materialize_master_grads_; }

 protected:
  /// Where the steps of a group are counted. On the device its learning rate is read there, too.
  enum class Counting { none, on_host, on_device };

  struct Switches {
    bool set_grad_none = true;
    bool materialize_master_grads = true;
    Counting counting = Counting::on_host;
  };

  FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults, detail::OptionsRules rules, Switches switches);

  /// Errors of a step that are the class's own, before anything is changed.
  virtual void check_group(size_t /*group*/) const {}
  /// Steps that count as taken before a group's first.
  virtual int64_t steps_at_start(size_t /*group*/) const { return 0; }
  /// What is saved as the group's `exp_avg_sq`.
  virtual at::Tensor norms_by_position(size_t /*group*/) const { return {}; }
  /// Updates everything; parameters and gradients are checked.
  virtual void update() = 0;

  /// The model's parameter that gets the new value of the one at `position` of `group` too; undefined if there is none.
  const at::Tensor& copy_of(size_t group, size_t position) const;
  /// The gradient that the parameter at `position` of `group` is stepped with; undefined if it has none.
  const at::Tensor& grad_of(size_t group, size_t position) const;
  /// The parameters of a group that have a gradient: by device, those with a model copy apart from those without, and, if asked
  /// for, those without state apart from those with it.
  std::vector<detail::LaunchSet> launch_sets(size_t group, bool split_fresh = false) const;

  /// The state of a parameter, made if there is none.
  template <class State>
  State& state_of(const at::Tensor& param) {
    auto& state = state_[param.unsafeGetTensorImpl()];
    if (state == nullptr) state = std::make_unique<State>();
    return static_cast<State&>(*state);
  }
  bool has_state(const at::Tensor& param) const { return state_.find(param.unsafeGetTensorImpl()) != state_.end(); }

  detail::GroupState& group_state(size_t group);
  /// The learning rate on the device. Written when it changed only: a write that a CUDA graph captured would freeze it.
  const at::Tensor& device_lr(size_t group, double lr);
  /// Does nothing where steps are not counted on the device.
  void write_device_lrs();
  const std::vector<detail::GroupState>& group_states() const { return group_states_; }

  /// Sets what the loss scaler and amp say: found_inf and the gradients' scale.
  void set_scaling(kernels::StepControl& control) const;
  /// Runs `call(set, control)` for each set with the group's step count in the control, and advances the count: by one for all
  /// sets together, unless the step is stopped. Sets that are not const are the call's to change.
  template <class Sets, class Control, class Call>
  void run_step(size_t group, Sets&& sets, Control control, const Call& call) {
    begin_group(group, control);
    const bool by_kernel = sets.size() == 1 && can_count(sets.front(), control);
    for (auto& set : sets) {
      Control of_set = control;
      place_control(set, by_kernel, of_set);
      call(set, of_set);
    }
    end_group(group, by_kernel, control);
  }

  void save_group_states(torch::serialize::OutputArchive& archive) const;
  /// Takes over what a file has for this optimizer, of which `read` holds all but the group states.
  void take_over(torch::optim::Optimizer& read, torch::serialize::InputArchive& archive);

 private:
  /// Of a group in a file.
  struct SavedGroup {
    int64_t steps;
    at::Tensor exp_avg_sq;
  };

  void see_to_groups();
  void list_params_once();
  std::vector<detail::SteppedParam> stepped_params() const;
  void check_step();
  static std::vector<SavedGroup> read_group_states(torch::serialize::InputArchive& archive);
  void take_over_group(size_t group, const SavedGroup& saved);
  bool stopped_on_host() const;
  bool any_fresh() const;
  void check_capture() const;
  void check_captured_count(size_t group) const;
  c10::Device device_of(size_t group) const;
  void begin_group(size_t group, kernels::MomentControl& control);
  /// Whether the set's kernel can advance the step count itself.
  bool can_count(const detail::LaunchSet& set, const kernels::MomentControl& control) const;
  /// Moves the control's tensors to the set's device. The kernel that does not count advances a copy.
  void place_control(const detail::LaunchSet& set, bool counts, kernels::MomentControl& control) const;
  void end_group(size_t group, bool advanced, const kernels::MomentControl& control);

  detail::OptionsRules rules_;
  std::vector<detail::GroupState> group_states_;
  amp::detail::UniqueParamGroups unique_groups_;
  size_t checked_groups_ = 0;  // whose options had values that are allowed when they came
  detail::ApartInMemory apart_in_memory_;
  bool set_grad_none_;
  bool materialize_master_grads_;
  Counting counting_;
};

}  // namespace apex::optimizers
