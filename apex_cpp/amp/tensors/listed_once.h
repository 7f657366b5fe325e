#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/tensors/seen_groups.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

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
  SeenGroups seen_;
};

}  // namespace apex::amp::detail
