#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>

#include <apex_cpp/amp/tensors/module_paths.h>
#include <apex_cpp/amp/tensors/parameter_names.h>

// What watches operator calls has of them: the tensors among arguments or results, and the module that an argument tells.
namespace apex::amp::detail {

/// Visits the defined tensors in a value, those in lists and tuples too, in order.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

/// "aten::conv2d" of a call that LibTorch announces; an overload follows a dot.
inline std::string name_of_call(const at::RecordFunction& function) {
  const std::string overload = function.overload_name();
  return function.name() + (overload.empty() ? "" : "." + overload);
}

/// The path of the module whose parameter, or view of one, `tensor` is. Empty for other tensors.
inline std::string module_of(const at::Tensor& tensor, const ParameterNames& names) {
  const auto* name = names.find(tensor);
  if (!name && tensor.is_view()) name = names.find(at::Tensor(tensor._base()));
  return name ? module_path_of(*name) : "";
}

}  // namespace apex::amp::detail
