#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include <apex_cpp/amp/checkpoint/content.h>

namespace apex::amp::detail {

class OptimizerStash;

/// The parameters of an optimizer as a checkpoint counts them: over all groups, once for one that stands there twice.
struct OptimizerParams {
  struct Param {
    at::Tensor stepped;  // what the optimizer updates: a master, or the model's own
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
  /// The first name counts where a parameter has several.
  void add(const at::Tensor& param, const std::string& name) { names_.try_emplace(param.unsafeGetTensorImpl(), name); }
  /// Empty for a parameter of no model.
  std::string find(const at::Tensor& param) const;

 private:
  std::map<const at::TensorImpl*, std::string> names_;
};

/// What the optimizer's `save` writes. LBFGS's, which may fail between its steps, is without scratch tensors.
ArchiveTree saved_state_of(const torch::optim::Optimizer& optimizer);

/// Everything that the optimizer's next steps depend on but gradients. The masters in the answer are the optimizer's own
/// tensors, its state is a copy on the CPU.
OptimizerContent content_of(const torch::optim::Optimizer& optimizer, const OptimizerStash* stash, const ParamNames& names);

/// An optimizer's state and options while those of a checkpoint are put in their place.
class OptimizerLoad {
 public:
  OptimizerLoad(torch::optim::Optimizer& optimizer, const OptimizerStash* stash);

  /// Errors, nothing is changed: c10::Error that names what is different: the class, the groups, a parameter, its shape, an
  /// option, a state.
  void check_fits(const ParamNames& names, const OptimizerContent& content) const;
  /// Puts options and state in force. Each state gets the device, layout and dtype of its parameter; masters are left alone.
  /// Errors: whatever the optimizer's own `load` throws; then `undo` must follow.
  void apply(const OptimizerContent& content);
  /// Puts back what was there before `apply`, if it has begun.
  void undo();

 private:
  using States = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

  torch::optim::Optimizer& optimizer_;
  const OptimizerStash* stash_;
  ArchiveTree before_;  // all but the parameters' states and masters
  States states_before_;
  bool begun_ = false;
};

}  // namespace apex::amp::detail
