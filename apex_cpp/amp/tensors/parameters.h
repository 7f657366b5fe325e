#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/tensors/tensor_version.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// The module that a program means by `model`: itself, or what its holder or pointer holds. Error: it holds none; `taker` is
/// who was given it.
template <class Net>
auto& module_in(Net& model, const char* taker) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
    return model;
  } else {
    TORCH_CHECK(static_cast<bool>(model), taker, " was given a null model.");
    return *model;
  }
}

/// The path of the module that has the parameter of this name: "layer1.0.conv1.weight" is in "layer1.0.conv1". Empty for a
/// parameter of the root.
inline std::string module_path_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Whether the module at `path` is one of `modules`, or in one: "encoder.0" is within "encoder", "encoder2" is not.
inline bool is_within(const std::string& path, const std::vector<std::string>& modules) {
  for (const auto& module : modules) {
    if (path.compare(0, module.size(), module) == 0 && (path.size() == module.size() || path[module.size()] == '.'))
      return true;
  }
  return false;
}

/// The names that tensors have in the models.
class ParameterNames {
 public:
  /// The first name counts where a tensor has several.
  void add(const at::Tensor& tensor, std::string name) {
    if (!has(tensor)) names_.set(tensor, std::move(name));
  }
  bool has(const at::Tensor& tensor) const { return names_.has(tensor); }
  /// Null for a tensor of no model.
  const std::string* find(const at::Tensor& tensor) const { return names_.find(tensor); }

  /// Visits the tensors that are still there with their names, each once, in no order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    names_.for_each(visit);
  }

 private:
  WeakTensorMap<std::string> names_;
};

/// The names of the newest `initialize`; null before it and after `reset`. From any thread.
std::shared_ptr<const ParameterNames> newest_parameter_names();
void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names);

/// The parameters and buffers of `module` by their full names, the tensors themselves, in `Module`'s order. All are defined.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module);

/// What a checkpoint has of a parameter or buffer: the tensor itself, or a float32 copy of one with 16 bits (MODEL-08).
at::Tensor widened(const at::Tensor& tensor);

/// Whether somebody else has the memory of `tensor` as well: a view, or a tensor that `set_data` has tied to it.
bool has_shared_memory(const at::Tensor& tensor);
/// Whether two tensors are one memory in one layout, as parameters are that `a.set_data(b)` has tied.
bool are_tied(const at::Tensor& a, const at::Tensor& b);

/// Values can be copied to the tensor from here on: one whose elements share memory, as an expanded one's do, gets memory for
/// each, with the same values.
void give_each_element_memory(const at::Tensor& tensor);

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// Which tensors an optimizer's groups held, to tell cheaply whether they hold others: programs write into groups in ways that
/// the optimizer does not see. Holds addresses: whoever must not take a new tensor for one that is gone keeps those alive.
class ParamGroupsSnapshot {
 public:
  ParamGroupsSnapshot() = default;
  explicit ParamGroupsSnapshot(const ParamGroups& groups);

  bool still(const ParamGroups& groups) const;

 private:
  std::vector<std::vector<const at::TensorImpl*>> groups_;
};

}  // namespace apex::amp::detail

// Tied parameters. LibTorch's `parameters()` lists a parameter once for each module that has it, Python's once in all. Whatever
// walks parameters here counts each TensorImpl once, at its first place, and knows it by these functions.
namespace apex::amp::detail {

/// What messages call a parameter.
using NameOfParam = std::function<std::string(const at::Tensor&)>;

/// Whether a tensor is one that it was not asked of before.
class FirstTimes {
 public:
  bool operator()(const at::Tensor& tensor);

 private:
  std::unordered_set<const at::TensorImpl*> met_;
};

/// The tensors in their order, each once.
std::vector<at::Tensor> listed_once(const std::vector<at::Tensor>& tensors);
/// The parameters of all groups in their order, each once.
std::vector<at::Tensor> params_of(const ParamGroups& groups);

/// "of shape [2, 3]": for parameters whose names nobody knows.
std::string shape_of(const at::Tensor& param);

/// Errors: ValueError naming a parameter that is in two groups, as in Python.
void check_one_group_each(const ParamGroups& groups, const NameOfParam& name_of = shape_of);
/// Drops what a group lists again. Errors, before anything is changed: as `check_one_group_each`.
void list_params_once(ParamGroups& groups, const NameOfParam& name_of = shape_of);

/// Calls list_params_once for an optimizer's groups whenever they hold other tensors than they did.
class ListedOnce {
 public:
  bool is_due(const ParamGroups& groups) const { return !seen_.still(groups); }
  /// Errors: as `list_params_once`.
  void see_to(ParamGroups& groups, const NameOfParam& name_of = shape_of);

 private:
  ParamGroupsSnapshot seen_;
};

}  // namespace apex::amp::detail
