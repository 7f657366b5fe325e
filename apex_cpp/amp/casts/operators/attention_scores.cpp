#include <apex_cpp/amp/casts/operators/attention_scores.h>

#include <ATen/Operators.h>
#include <torch/csrc/autograd/graph_task.h>

#include <array>

#include <apex_cpp/amp/casts/unboxed_kernel.h>
#include <apex_cpp/amp/tensors/tensor_trace.h>

namespace apex::amp::detail {
namespace {

using Bmm = UnboxedKernel<at::_ops::bmm>;
using Cat = UnboxedKernel<at::_ops::cat>;

// LibTorch's attention views what it has for [time, batch, heads * features] as [time, batch * heads, features] and swaps the
// first two dimensions: so lie queries, values and, before their last two dimensions are swapped as well, keys. Nested and
// compressed sparse tensors have no strides to ask for.
bool lies_as_heads(const at::Tensor& tensor, int64_t time = 1, int64_t features = 2) {
  if (tensor.is_nested() || tensor.layout() != at::kStrided) return false;
  return tensor.dim() == 3 && tensor.stride(features) == 1 && tensor.stride(0) == tensor.size(features) &&
         tensor.stride(time) == tensor.size(0) * tensor.size(features);
}

bool is_low(const at::Tensor& tensor) { return kLowTypes.has(tensor.scalar_type()); }

// The keys and the values of the attention that this thread came by last with a step of zeros behind them (`add_zero_attn`).
// They lie as any other result of `cat`.
class WithZeroStep {
 public:
  void add(const at::Tensor& tensor) {
    made_[next_] = TensorTrace(tensor);
    next_ = (next_ + 1) % made_.size();
  }
  bool has(const at::Tensor& tensor) const { return made_[0].same_memory(tensor) || made_[1].same_memory(tensor); }

 private:
  std::array<TensorTrace, 2> made_;
  size_t next_ = 0;
};

WithZeroStep& with_zero_step() {
  thread_local WithZeroStep instance;
  return instance;
}

bool adds_a_step(const at::ITensorListRef& tensors, int64_t dim) {
  if (dim != 1 || tensors.size() != 2) return false;
  const at::Tensor& heads = *tensors.begin();
  const at::Tensor& step = *++tensors.begin();
  return lies_as_heads(heads) && step.dim() == 3 && step.size(1) == 1 && !step.requires_grad();
}

bool are_keys(const at::Tensor& tensor) {
  return lies_as_heads(tensor, 2, 1) || (tensor.stride(1) == 1 && with_zero_step().has(tensor));
}

// Whether the rules of a program's own forward pass list the product.
bool is_attention_listed() {
  const auto& here = thread_casts();
  const auto* rules = rules_in_force(here).rules;
  if (!rules || rules->policy(*Bmm::slot) != CastPolicy::half) return false;
  const bool off = here.disabled && rules->mode() == CastRules::Mode::casts;
  return torch::autograd::get_current_graph_task_id() == here.graph_task && !off;
}

bool are_scores(const at::Tensor& product, const at::Tensor& queries, const at::Tensor& keys) {
  return is_low(product) && lies_as_heads(queries) && are_keys(keys) && is_attention_listed();
}

at::Tensor bmm(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor product = Bmm::call(keys, self, other);
  return are_scores(product, self, other) ? product.to(at::kFloat) : product;
}

at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  const at::Tensor result = Cat::call(keys, tensors, dim);
  if (adds_a_step(tensors, dim)) with_zero_step().add(result);
  return result;
}

}  // namespace

void register_attention_scores(torch::Library& aten) {
  Bmm::slot = &operator_slot(at::_ops::bmm::name, at::_ops::bmm::overload_name);
  aten.impl(Bmm::slot->name.c_str(), TORCH_FN(bmm));
  Cat::slot = &operator_slot(at::_ops::cat::name, at::_ops::cat::overload_name);
  aten.impl(Cat::slot->name.c_str(), TORCH_FN(cat));
}

}  // namespace apex::amp::detail
