#include <apex_cpp/amp/handles/cast.h>

#include <apex_cpp/amp/tensors/low_precision.h>

namespace apex::amp::detail {

at::Tensor cast_tensor(const at::Tensor& tensor, c10::ScalarType dtype) {
  return tensor.defined() && is_real_float(tensor.scalar_type()) ? tensor.to(dtype) : tensor;
}

c10::IValue cast_ivalue(const c10::IValue& value, c10::ScalarType dtype) {
  if (value.isTensor()) return cast_tensor(value.toTensor(), dtype);
  if (value.isTensorList()) return cast_floating(value.toTensorVector(), dtype);
  if (value.isTuple()) {
    return c10::ivalue::Tuple::create(cast_elements(value.toTupleRef().elements().vec(), dtype));
  }
  if (value.isList()) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, cast_ivalue(list.get(i), dtype));
    return list;
  }
  if (value.isGenericDict()) {
    auto dict = value.toGenericDict().copy();
    for (const auto& item : value.toGenericDict()) dict.insert_or_assign(item.key(), cast_ivalue(item.value(), dtype));
    return dict;
  }
  return value;
}

}  // namespace apex::amp::detail
