#include <apex_cpp/amp/cpu_fallback/widen.h>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>

namespace apex::amp::detail {
namespace {

std::optional<c10::ScalarType> one_low_type(const Operands& operands, Beside beside) {
  if (!operands.all_on_cpu) return std::nullopt;
  const bool may_be_float32 = beside == Beside::float32;
  const FloatTypes types = may_be_float32 ? operands.types.without(FloatTypes(at::kFloat)) : operands.types;
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    if (types == FloatTypes(type)) return type;
  }
  return std::nullopt;
}

}  // namespace

std::optional<c10::ScalarType> type_to_widen(const Operands& operands, Beside beside, Float32On where) {
  const auto type = one_low_type(operands, beside);
  if (!type) return std::nullopt;
  const auto& here = thread_casts();
  const CastRules* rules = rules_in_force(here).rules;
  if (!rules) return std::nullopt;
  const bool is_inexact = where == Float32On::all_processors || operands.any_sparse;
  const bool everywhere = where == Float32On::no_native_kernel || (is_inexact && rules->own_kernels().has(*type));
  if (!everywhere && !rules->widened().has(*type)) return std::nullopt;
  if (here.recorder) here.recorder->add_float32();
  return type;
}

std::optional<c10::ScalarType> type_with_own_kernels(const Operands& operands, Beside beside) {
  const auto type = one_low_type(operands, beside);
  if (!type || operands.any_sparse) return std::nullopt;
  const CastRules* rules = rules_in_force(thread_casts()).rules;
  return rules && rules->own_kernels().has(*type) ? type : std::nullopt;
}

std::optional<c10::ScalarType> type_with_own_products(const Operands& operands) {
  const auto type = type_with_own_kernels(operands);
  return type && !rules_in_force(thread_casts()).rules->widened().has(*type) ? type : std::nullopt;
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
