#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include <apex_cpp/amp/checkpoint/content.h>

namespace apex::amp::detail {

class OptimizerStash;

/// The parameters of an optimizer in a checkpoint's order: over all groups, where a parameter listed twice counts once.
struct OptimizerParams {
  struct Param {
    at::Tensor stepped;  // the tensor that the optimizer updates: a master, or the model's parameter
    at::Tensor model;
    bool has_master() const { return !stepped.is_same(model); }
  };
  std::vector<Param> params;
  std::vector<std::vector<int64_t>> groups;

  /// `stash` is null without amp.
  OptimizerParams(const torch::optim::Optimizer& optimizer, const OptimizerStash* stash);
};

/// Full names of the models' parameters.
class ParamNames {
 public:
  /// A parameter keeps its first name.
  void add(const at::Tensor& param, const std::string& name) { names_.try_emplace(param.unsafeGetTensorImpl(), name); }
  /// The full name; empty for a parameter of no model.
  std::string find(const at::Tensor& param) const;

 private:
  std::map<const at::TensorImpl*, std::string> names_;
};

/// The contents that the optimizer's `save` writes. Leaves out LBFGS's scratch tensors, with which its `save` may fail.
ArchiveTree saved_state_of(const torch::optim::Optimizer& optimizer);

/// The optimizer's whole state, without gradients. The masters in the result are the optimizer's own tensors; its state is a
/// copy on the CPU.
OptimizerContent content_of(const torch::optim::Optimizer& optimizer, const OptimizerStash* stash, const ParamNames& names);

/// The float32 master that one of the fused optimizers kept in the state of its parameter at `position`, such as FusedAdam with
/// master_weights; undefined if there is none. `is_fused`: whether the class, one of the program's, derives from a fused one.
at::Tensor own_master_in(const OptimizerContent& content, size_t position, bool is_fused);

/// Loads a checkpoint's state and options into an optimizer, and can undo it.
class OptimizerLoad {
 public:
  OptimizerLoad(torch::optim::Optimizer& optimizer, const OptimizerStash* stash);

  /// Changes nothing. Errors: c10::Error with the difference in class, groups, parameters, shapes, options or state.
  void check_fits(const ParamNames& names, const OptimizerContent& content) const;
  /// Replaces options and state. Each state gets the device, layout and dtype of its parameter. Leaves masters alone. Errors:
  /// those of the optimizer's own `load`; call `undo` then.
  void apply(const OptimizerContent& content);
  /// Restores the state from before `apply`, if `apply` has begun.
  void undo();

 private:
  using States = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

  torch::optim::Optimizer& optimizer_;
  const OptimizerStash* stash_;
  ArchiveTree before_;  // without the parameters' states and masters
  States states_before_;
  bool begun_ = false;
};

}  // namespace apex::amp::detail
