#include <ATen/core/dispatch/Dispatcher.h>
#include <apex_cpp/amp/handles/cast.h>
#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Backtrace.h>
#include <c10/util/Lazy.h>

#include <algorithm>
#include <optional>
#include <string>

namespace apex::amp::detail {
namespace {

constexpr const char* kWhy16Bit = "amp makes tensors 16-bit in this forward, and ";

bool has_word(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

// The phrases of LibTorch's errors for a missing kernel, and of `data_ptr<float>()`.
bool refuses_low_types(const std::string& text) {
  if (!has_word(text, "Half") && !has_word(text, "BFloat16")) return false;
  const auto phrases = {"not implemented for", "not supported",      "nsupported dtype",
                        "doesn't support",     "only supported for", "expected scalar type Float but found"};
  return std::any_of(phrases.begin(), phrases.end(), [&](const char* phrase) { return has_word(text, phrase); });
}

// "aten::sum.dim_IntList" for "sum_dim_IntList", the operator's name in LibTorch's C++ code; nothing for an unknown name.
std::optional<c10::OperatorName> operator_called(const std::string& cpp_name) {
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::", 0) != 0) continue;
    if (op.name.substr(6) + (op.overload_name.empty() ? "" : "_" + op.overload_name) == cpp_name) return op;
  }
  return std::nullopt;
}

// The operator that the program called: the outermost operator in the backtrace. Frames have names such as
// "at::_ops::linalg_inv::call(at::Tensor const&)".
std::optional<c10::OperatorName> operator_of(const c10::Error& error) {
  static const std::string before = "at::_ops::", after = "::call(";
  const std::string frames = error.backtrace() ? error.backtrace()->get() : std::string();
  for (auto at = frames.rfind(before); at != std::string::npos && at > 0; at = frames.rfind(before, at - 1)) {
    const auto start = at + before.size(), end = frames.find("::", start);
    if (end != std::string::npos && frames.compare(end, after.size(), after) == 0)
      return operator_called(frames.substr(start, end - start));
  }
  return std::nullopt;
}

// An operator that writes to an argument cannot run in FP32 on a 16-bit one: its form that returns a new tensor can.
std::string remedy_for(const c10::OperatorName& op) {
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  const bool writes = handle && handle->schema().is_mutable();
  const bool in_place = writes && op.name.back() == '_';
  return std::string(", or ") + (writes ? "call the function that returns a new tensor, and " : "") +
         "name it in InitializeOptions().float32_functions({\"" + op.name.substr(0, op.name.size() - in_place) +
         "\"}) or in float32_functions of the level's file.";
}

bool is_cast(const at::Tensor& tensor) { return tensor.defined() && is_real_float(tensor.scalar_type()); }

/// Casts outside of inference mode, because a tensor made in inference mode has no version counter.
at::Tensor cast_counting_writes(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (!c10::InferenceMode::is_enabled()) return cast_tensor(tensor, dtype);
  const c10::InferenceMode off(false);
  const c10::AutoGradMode no_grad(false);
  return cast_tensor(tensor, dtype);
}

/// `to.copy_(from)`; resizes `to` first if forward has resized `from`.
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
    // If autograd did not record the write in forward, it does not record the write back.
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

void explain_refusal(c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (!refuses_low_types(text) || has_word(text, kWhy16Bit)) return;
  const auto op = operator_of(error);
  error.add_context(kWhy16Bit + (op ? op->name : "code that is called there") +
                    " does not take 16-bit tensors. Convert its inputs by to(torch::kFloat)" +
                    (op ? remedy_for(*op)
                        : ", wrap the code in amp::float_function at O1 and O4, or name its operator, if it is one, in "
                          "float32_functions of InitializeOptions or of the level's file."));
}

}  // namespace apex::amp::detail
