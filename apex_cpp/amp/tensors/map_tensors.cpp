#include <apex_cpp/amp/tensors/map_tensors.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <utility>
#include <vector>

namespace apex::amp::detail {

c10::IValue map_ivalue(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements()) elements.push_back(map_ivalue(element, f));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, map_ivalue(list.get(i), f));
    return list;
  }
  if (value.isGenericDict()) {
    auto dict = value.toGenericDict().copy();
    for (const auto& item : value.toGenericDict()) dict.insert_or_assign(item.key(), map_ivalue(item.value(), f));
    return dict;
  }
  return value;
}

}  // namespace apex::amp::detail
