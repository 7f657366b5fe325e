#include <apex_cpp/amp/handles/cast.h>
#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace apex::amp::detail {
namespace {

bool is_cast(const at::Tensor& tensor) { return tensor.defined() && is_real_float(tensor.scalar_type()); }

/// A tensor that is made in inference mode counts no writes.
at::Tensor cast_counting_writes(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (!c10::InferenceMode::is_enabled()) return cast_tensor(tensor, dtype);
  const c10::InferenceMode off(false);
  const c10::AutoGradMode no_grad(false);
  return cast_tensor(tensor, dtype);
}

/// `to.copy_(from)`, where `to` takes the size that forward has given its own.
void copy_write(const at::Tensor& from, const at::Tensor& to) {
  if (!to.sizes().equals(from.sizes())) to.resize_(from.sizes());
  to.copy_(from);
}

}  // namespace

at::Tensor cast_tensor(const at::Tensor& tensor, c10::ScalarType dtype) { return is_cast(tensor) ? tensor.to(dtype) : tensor; }

bool is_same_value(const c10::IValue& a, const c10::IValue& b) {
  const auto same = [](const c10::IValue& of_a, const c10::IValue& of_b) { return is_same_value(of_a, of_b); };
  if (a.isTuple() && b.isTuple()) {
    const auto &of_a = a.toTupleRef().elements(), &of_b = b.toTupleRef().elements();
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), same);
  }
  if (a.isList() && b.isList()) {
    const auto of_a = a.toListRef(), of_b = b.toListRef();
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), same);
  }
  if (a.isGenericDict() && b.isGenericDict()) {
    const auto of_a = a.toGenericDict(), of_b = b.toGenericDict();
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                      [&](const auto& x, const auto& y) { return same(x.key(), y.key()) && same(x.value(), y.value()); });
  }
  return a.is(b);
}

at::Tensor ArgumentTensors::hand_over(const at::Tensor& given) {
  const at::Tensor cast = inputs_ ? cast_counting_writes(given, *inputs_) : given;
  const bool counts = !cast.is_same(given);
  handed_.push_back({given, cast, counts ? cast._version() : 0, counts ? cast.grad_fn().get() : nullptr});
  return cast;
}

void ArgumentTensors::copy_writes_back() const {
  for (const auto& [given, cast, version, made_by] : handed_) {
    if (cast.is_same(given) || cast._version() == version) continue;
    // A write that autograd did not see, on either side of it.
    const c10::AutoGradMode records(c10::GradMode::is_enabled() && cast.grad_fn().get() != made_by);
    copy_write(cast, given);
  }
}

at::Tensor ArgumentTensors::hand_back(const at::Tensor& tensor) {
  const size_t position = position_++;
  if (!is_cast(tensor)) return tensor;
  for (const auto& each : handed_) {
    if (tensor.is_same(each.cast)) return each.given;
  }
  const bool has_dtype = outputs_ == at::kFloat && position < handed_.size() && is_cast(handed_[position].given);
  if (has_dtype) return tensor.to(handed_[position].given.scalar_type());
  return outputs_ ? tensor.to(*outputs_) : tensor;
}

}  // namespace apex::amp::detail
