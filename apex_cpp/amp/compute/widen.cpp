#include <apex_cpp/amp/compute/widen.h>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/casts/trace_recorder.h>
#include <apex_cpp/amp/tensors/low_precision.h>

namespace apex::amp::detail {

std::optional<c10::ScalarType> type_to_widen(const Operands& operands, bool beside_float32) {
  if (!operands.all_on_cpu) return std::nullopt;
  const FloatTypes types = beside_float32 ? operands.types.without(FloatTypes(at::kFloat)) : operands.types;
  const auto& here = thread_casts();
  const CastRules* rules = rules_in_force(here).rules;
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    if (!(types == FloatTypes(type)) || !rules || !rules->widened().has(type)) continue;
    if (here.recorder) here.recorder->add_float32();
    return type;
  }
  return std::nullopt;
}

at::Tensor in_float32(const at::Tensor& tensor) {
  return tensor.defined() && is_low_precision(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

std::vector<at::Tensor> in_float32(at::TensorList tensors) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& tensor : tensors) wide.push_back(in_float32(tensor));
  return wide;
}

at::Tensor rounded(const at::Tensor& tensor, c10::ScalarType type) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(type) : tensor;
}

}  // namespace apex::amp::detail
