#pragma once

#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace apex::fp16_utils::detail {

/// A trainable parameter, and the tensor that the optimizer steps: its float32 master, or the parameter itself.
struct TrainedParam {
  at::Tensor param, stepped;
  at::ScalarType dtype = at::kFloat;       ///< of `param` when it got its master; the program may convert it since
  amp::detail::WeightRecord synced_param;  ///< `param` when it was last equal to the rounded master

  bool has_master() const { return !stepped.is_same(param); }
  /// The master with the program's edits of `param` since `mark_synced`: with the elements of `param` that differ from the
  /// rounded master. No synchronization.
  at::Tensor edited_master() const;
  /// Copies the edits into the master, and gives it the layout of `param`, which `set_data` may have changed.
  void take_edits();
  /// Records that `param` equals the rounded master, or is to be overwritten with it.
  void mark_synced() { synced_param = amp::detail::WeightRecord(param); }

 private:
  bool is_edited() const { return !synced_param.matches(param); }
};

/// The parameters that FP16_Optimizer trains, without repetition, in the order of the wrapped optimizer's groups (FP16O-01).
class TrainedParams {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Adds parameters that are new in the groups, or no longer frozen. 16-bit parameters get masters, with their optimizer
  /// state. Errors, before anything is changed: TypeError for a parameter that is not float16, bfloat16 or float32; ValueError
  /// for a 16-bit parameter with gaps in memory, for one that `set_data` ties to another one, and for a parameter in two
  /// groups.
  void add_new(torch::optim::Optimizer& optimizer);
  /// Lists the parameters again if the program has changed the groups, without adding new ones. Errors, before anything is
  /// changed: RuntimeError for a gradient of a parameter that add_new() has not added yet; ValueError for a parameter in two
  /// groups.
  void follow_groups(torch::optim::Optimizer& optimizer);
  /// Copies the program's edits of 16-bit parameters into their masters.
  void take_edits();
  /// Records that the 16-bit parameters equal their rounded masters.
  void mark_synced();

  /// Finds a parameter by itself or by its master, also if it is in no group any more; nullptr if there is none.
  TrainedParam* find(const at::Tensor& tensor) const;
  /// The parameters in `groups` that add_new() has added, without repetition.
  std::vector<TrainedParam*> trained_in(const amp::detail::ParamGroups& groups) const;
  /// The 16-bit parameters and their masters, matched by index, as the last add_new() or follow_groups() found them.
  const Tensors& model_params() const { return model_params_; }
  const Tensors& masters() const { return masters_; }
  /// The float32 parameters.
  const Tensors& native() const { return native_; }

 private:
  using ParamGroups = amp::detail::ParamGroups;

  bool is_new(const at::Tensor& param) const { return param.requires_grad() && find(param) == nullptr; }
  template <class Groups, class F>
  void for_each_new(Groups& groups, const F& f) const;
  void list_again(ParamGroups& groups);
  void add(torch::optim::Optimizer& optimizer, at::Tensor& param);
  void sort_by(const ParamGroups& groups);

  std::list<TrainedParam> entries_;  // a list keeps their addresses valid
  std::unordered_map<const at::TensorImpl*, TrainedParam*> by_tensor_;
  amp::detail::UniqueParamGroups unique_groups_;
  Tensors model_params_, masters_, native_;
};

}  // namespace apex::fp16_utils::detail

// Manual FP32 masters, for programs from before `amp`. Tensors may be on any device; nothing synchronises.
namespace apex::fp16_utils {

/// The model's trainable parameters, tied ones once, and FP32 masters for them: detached copies that require gradients.
///
/// With `flat_master` there is one master, the concatenation of all parameters, with an uninitialised gradient. Without
/// parameters there is no master.
/// Errors: TypeError naming the dtypes if `flat_master` meets parameters of several dtypes.
/// Apex: `fp16_utils.prep_param_lists` (FP16U-06).
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> prep_param_lists(const torch::nn::Module& model,
                                                                             bool flat_master = false);

/// Copies the model parameters' gradients to the masters, converting them. If a parameter has no gradient, its master gets
/// none. Errors, before anything is changed: RuntimeError unless the lists match like those of `prep_param_lists` (each
/// parameter has a master of its shape, or, with `flat_master`, there is one master of all elements), for a sparse gradient,
/// and, with `flat_master`, if a parameter has no gradient. Apex: `fp16_utils.model_grads_to_master_grads` (FP16U-07).
void model_grads_to_master_grads(const std::vector<at::Tensor>& model_params, const std::vector<at::Tensor>& master_params,
                                 bool flat_master = false);

/// Copies the masters to the model's parameters, rounding them. Errors, before anything is changed: RuntimeError unless the
/// lists match. Apex: `fp16_utils.master_params_to_model_params` (FP16U-08).
void master_params_to_model_params(const std::vector<at::Tensor>& model_params, const std::vector<at::Tensor>& master_params,
                                   bool flat_master = false);

}  // namespace apex::fp16_utils
