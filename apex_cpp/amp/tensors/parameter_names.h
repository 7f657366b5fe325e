#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/tensors/weak_tensor_map.h>

#include <memory>
#include <string>
#include <utility>

namespace apex::amp::detail {

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

}  // namespace apex::amp::detail
