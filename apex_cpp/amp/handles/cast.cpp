#include <apex_cpp/amp/handles/cast.h>

#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/map_ivalue.h>

namespace apex::amp::detail {

at::Tensor cast_leaf(const at::Tensor& tensor, c10::ScalarType dtype) {
  return tensor.defined() && is_real_float(tensor.scalar_type()) ? tensor.to(dtype) : tensor;
}

c10::IValue cast_leaf(const c10::IValue& value, c10::ScalarType dtype) {
  return map_ivalue(value, [&](const at::Tensor& tensor) { return cast_leaf(tensor, dtype); });
}

}  // namespace apex::amp::detail
