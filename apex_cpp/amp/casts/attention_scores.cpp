#include <apex_cpp/amp/casts/attention_scores.h>

#include <ATen/Operators.h>
#include <torch/csrc/autograd/graph_task.h>

#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

using Bmm = UnboxedKernel<at::_ops::bmm>;

// [heads, time, features], made by LibTorch's attention of [time, heads, features].
bool lies_as_heads(const at::Tensor& tensor) {
  return tensor.dim() == 3 && tensor.stride(2) == 1 && tensor.stride(0) == tensor.size(2) &&
         tensor.stride(1) == tensor.size(0) * tensor.size(2);
}

bool is_low(const at::Tensor& tensor) { return kLowTypes.has(tensor.scalar_type()); }

// The rules of a program's own forward pass, if they list the product.
const CastRules* rules_for_attention() {
  const auto& here = thread_casts();
  const auto* rules = rules_in_force(here).rules;
  const bool is_forward = torch::autograd::get_current_graph_task_id() == here.graph_task;
  return rules && is_forward && rules->policy(*Bmm::slot) == CastPolicy::half ? rules : nullptr;
}

// At O2, O3 and O5 outside of a handle's forward a 16-bit tensor that is no parameter leaves others as they are.
bool is_sum_of_values(const at::Tensor& weights, const at::Tensor& values) {
  if (weights.scalar_type() != at::kFloat || !is_low(values) || !lies_as_heads(values)) return false;
  const auto* rules = rules_for_attention();
  return rules && rules->mode() == CastRules::Mode::match;
}

bool are_scores(const at::Tensor& product, const at::Tensor& queries, const at::Tensor& keys) {
  return is_low(product) && lies_as_heads(queries) && keys.stride(1) == 1 && rules_for_attention();
}

at::Tensor bmm(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other) {
  if (is_sum_of_values(self, other)) return Bmm::call(keys, self.to(other.scalar_type()), other);
  const at::Tensor product = Bmm::call(keys, self, other);
  return are_scores(product, self, other) ? product.to(at::kFloat) : product;
}

}  // namespace

void register_attention_scores(torch::Library& aten) {
  Bmm::slot = &operator_slot(at::_ops::bmm::name, at::_ops::bmm::overload_name);
  aten.impl(Bmm::slot->name.c_str(), TORCH_FN(bmm));
}

}  // namespace apex::amp::detail
