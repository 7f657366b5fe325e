#pragma once

#include <ATen/core/ivalue.h>

#include <string>

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

/// The path of the module whose parameter, or view of one, `tensor` is: "layer1.0.conv1.weight" is in the module
/// "layer1.0.conv1". Empty for other tensors.
inline std::string module_of(const at::Tensor& tensor, const ParameterNames& names) {
  const auto* name = names.find(tensor);
  if (!name && tensor.is_view()) name = names.find(at::Tensor(tensor._base()));
  const auto dot = name ? name->rfind('.') : std::string::npos;
  return dot == std::string::npos ? "" : name->substr(0, dot);
}

}  // namespace apex::amp::detail
