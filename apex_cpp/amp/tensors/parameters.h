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

/// The module behind `model`: a Module itself, or the Module in a holder or pointer. Errors: RuntimeError naming `taker`, the
/// function that was given the model, if the holder or pointer is empty.
template <class Net>
auto& module_in(Net& model, const char* taker) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
    return model;
  } else {
    TORCH_CHECK(static_cast<bool>(model), taker, " was given a null model.");
    return *model;
  }
}

/// The path of the module that owns the parameter of this name: "layer1.0.conv1" for "layer1.0.conv1.weight". Empty for a
/// parameter of the root module.
inline std::string module_path_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Whether the module at `path` is one of `modules` or below one: "encoder.0" is within "encoder", "encoder2" is not.
inline bool is_within(const std::string& path, const std::vector<std::string>& modules) {
  for (const auto& module : modules) {
    if (path.compare(0, module.size(), module) == 0 && (path.size() == module.size() || path[module.size()] == '.'))
      return true;
  }
  return false;
}

/// The names of parameters in the initialized models.
class ParameterNames {
 public:
  /// Keeps the first name of a tensor that is added several times.
  void add(const at::Tensor& tensor, std::string name) {
    if (!has(tensor)) names_.set(tensor, std::move(name));
  }
  bool has(const at::Tensor& tensor) const { return names_.has(tensor); }
  /// Null for a tensor without a name.
  const std::string* find(const at::Tensor& tensor) const { return names_.find(tensor); }

  /// Visits each live tensor with its name, in no particular order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    names_.for_each(visit);
  }

 private:
  WeakTensorMap<std::string> names_;
};

/// The name of `tensor`, a parameter or a view of a parameter. Null for other tensors.
inline const std::string* name_of_parameter(const at::Tensor& tensor, const ParameterNames& names) {
  const auto* name = names.find(tensor);
  return !name && tensor.is_view() ? names.find(at::Tensor(tensor._base())) : name;
}

/// The path of the module that owns `tensor`, a parameter or a view of a parameter. Empty for other tensors.
inline std::string module_of(const at::Tensor& tensor, const ParameterNames& names) {
  const auto* name = name_of_parameter(tensor, names);
  return name ? module_path_of(*name) : "";
}

/// The names of the newest `initialize` call; null before it and after `reset`. Callable from any thread.
std::shared_ptr<const ParameterNames> newest_parameter_names();
void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names);

/// The parameters and buffers of `module` with their full names, in `Module`'s order. All tensors are defined.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module);

/// What a checkpoint stores for a parameter or buffer: a float32 copy of a 16-bit tensor, else the tensor itself (MODEL-08).
at::Tensor widened(const at::Tensor& tensor);

/// Whether another tensor uses the storage of `tensor`: a view, or a tensor tied to it by `set_data`.
bool has_shared_memory(const at::Tensor& tensor);
/// Whether two tensors use the same memory with the same layout, as after `a.set_data(b)`.
bool are_tied(const at::Tensor& a, const at::Tensor& b);

/// Makes `tensor` writable element by element: if its elements share memory, as in an expanded tensor, it gets a contiguous
/// copy of its values.
void remove_internal_overlap(const at::Tensor& tensor);

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// Records which tensors an optimizer's groups hold, to detect cheaply that a program has changed the groups. Compares
/// addresses: the caller must keep the tensors alive if a new tensor at the same address must not be mistaken for a freed one.
class ParamGroupsSnapshot {
 public:
  ParamGroupsSnapshot() = default;
  explicit ParamGroupsSnapshot(const ParamGroups& groups);

  bool matches(const ParamGroups& groups) const;

 private:
  std::vector<std::vector<const at::TensorImpl*>> groups_;
};

// Shared parameters. LibTorch's `parameters()` lists a parameter once for each module that has it; Python's lists it once.
// These functions count each TensorImpl once, at its first position.

/// Describes a parameter in messages.
using NameOfParam = std::function<std::string(const at::Tensor&)>;

/// True the first time a tensor is seen.
class FirstSeen {
 public:
  bool operator()(const at::Tensor& tensor);

 private:
  std::unordered_set<const at::TensorImpl*> seen_;
};

/// The tensors in order, without duplicates.
std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& tensors);
/// The parameters of all groups in order, without duplicates.
std::vector<at::Tensor> params_of(const ParamGroups& groups);

/// "of shape [2, 3]": describes a parameter without a known name.
std::string shape_of(const at::Tensor& param);

/// Errors: ValueError naming a parameter that is in two groups, as in PyTorch.
void check_one_group_each(const ParamGroups& groups, const NameOfParam& name_of = shape_of);
/// Removes repeated parameters from each group. Errors, before any change: as `check_one_group_each`.
void list_params_once(ParamGroups& groups, const NameOfParam& name_of = shape_of);

/// Calls `list_params_once` for an optimizer's groups whenever the groups have changed.
class UniqueParamGroups {
 public:
  bool is_due(const ParamGroups& groups) const { return !seen_.matches(groups); }
  /// Errors: as `list_params_once`.
  void update(ParamGroups& groups, const NameOfParam& name_of = shape_of);

 private:
  ParamGroupsSnapshot seen_;
};

}  // namespace apex::amp::detail
