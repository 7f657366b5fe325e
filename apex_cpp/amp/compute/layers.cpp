// Layers that are bound by memory, on 16-bit CPU tensors: kernels of ours in place of LibTorch's.
#include <apex_cpp/amp/compute/operators.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/Operators.h>
#include <ATen/ops/empty_like.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/compute/batch_norm.h>
#include <apex_cpp/amp/compute/widen.h>
#include <apex_cpp/amp/tensors/low_precision.h>

#include "kernels/layers/layers.h"

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;
using at::Tensor;
using c10::DispatchKeySet;

// Below, what a kernel saves is less than what finding out costs.
constexpr int64_t kElementsWorthAKernel = 4096;

bool are_alike(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && a.strides() == b.strides(); }

// The one 16-bit type of the tensors, if a kernel of ours is wanted for it and the first is dense.
template <class... Tensors>
std::optional<c10::ScalarType> type_for_kernel(const Tensor& first, const Tensors&... others) {
  const auto low_type = first.scalar_type();
  if (!is_low_precision(low_type) || !((others.scalar_type() == low_type) && ...)) return std::nullopt;
  Operands operands;
  operands.add(first);
  (operands.add(others), ...);
  const auto type = type_with_own_kernels(operands);
  const bool is_worth_it = type && first.numel() >= kElementsWorthAKernel && first.is_non_overlapping_and_dense();
  return is_worth_it ? type : std::nullopt;
}

Tensor relu(DispatchKeySet keys, const Tensor& x) {
  if (!type_for_kernel(x)) return op::relu::redispatch(keys & kBelowComputeKey, x);
  Tensor y = at::empty_like(x);
  kernels::relu(x, y);
  return y;
}

Tensor& relu_(DispatchKeySet keys, Tensor& x) {
  if (!type_for_kernel(x)) return op::relu_::redispatch(keys & kBelowComputeKey, x);
  kernels::relu(x, x);
  return x;
}

// relu's gradient. What comes from a mean over pixels is laid out in another way than the input, which LibTorch walks slowly.
Tensor threshold_backward(DispatchKeySet keys, const Tensor& grad_y, const Tensor& x, const at::Scalar& threshold) {
  if (!type_for_kernel(x, grad_y) || !threshold.equal(0) || grad_y.sizes() != x.sizes()) {
    return op::threshold_backward::redispatch(keys & kBelowComputeKey, grad_y, x, threshold);
  }
  Tensor grad_x = at::empty_like(x);
  if (are_alike(grad_y, grad_x) && are_alike(x, grad_x)) {
    kernels::relu_backward(grad_y, x, grad_x);
  } else {
    grad_x.copy_(grad_y);
    kernels::relu_backward(grad_x, x, grad_x);
  }
  return grad_x;
}

bool is_sum_of_bfloat16(const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  return type_for_kernel(a, b) == at::kBFloat16 && are_alike(a, b) && alpha.equal(1);
}

// The same memory, or none in common: LibTorch refuses to write to what it has yet to read.
bool may_write_beside(const Tensor& a, const Tensor& b) {
  const auto status = at::get_overlap_status(a, b);
  return status == at::MemOverlapStatus::No || status == at::MemOverlapStatus::Full;
}

Tensor add(DispatchKeySet keys, const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (!is_sum_of_bfloat16(a, b, alpha)) return op::add_Tensor::redispatch(keys & kBelowComputeKey, a, b, alpha);
  Tensor sum = at::empty_like(a);
  kernels::add(a, b, sum);
  return sum;
}

Tensor& add_(DispatchKeySet keys, Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (!is_sum_of_bfloat16(a, b, alpha) || !may_write_beside(a, b))
    return op::add__Tensor::redispatch(keys & kBelowComputeKey, a, b, alpha);
  kernels::add(a, b, a);
  return a;
}

void register_layer_kernels(torch::Library& aten) {
  aten.impl("relu", TORCH_FN(relu));
  aten.impl("relu_", TORCH_FN(relu_));
  aten.impl("threshold_backward", TORCH_FN(threshold_backward));
  aten.impl("add.Tensor", TORCH_FN(add));
  aten.impl("add_.Tensor", TORCH_FN(add_));
  register_batch_norm(aten);
}

const AtenKernels& layer_kernels() {
  static const AtenKernels kernels(kComputeKey, register_layer_kernels);
  return kernels;
}

[[maybe_unused]] const AtenKernels& layers_at_load = layer_kernels();

}  // namespace

void register_memory_bound_layers() { layer_kernels(); }

}  // namespace apex::amp::detail
