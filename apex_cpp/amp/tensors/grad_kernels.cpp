#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <ATen/ops/any.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/multi_tensor.h"
#include "kernels/plan/reuse.h"

namespace apex::amp::detail {

at::Tensor dense(const at::Tensor& grad) { return grad.is_non_overlapping_and_dense() ? grad : grad.contiguous(); }

at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.strides() == like.strides() ? tensor : at::empty_like(like, tensor.options()).copy_(tensor);
}

void PassGrads::add(const at::Tensor& param, const at::Tensor& stash) {
  at::Tensor& grad = param.mutable_grad();
  if (!grad.defined()) {
    grad = stash;
    if (stash.defined()) older.push_back(grad);
    return;
  }
  grad = dense(grad);
  if (!stash.defined()) return fresh.push_back(grad);
  again.push_back(grad);
  stashed.push_back(in_layout_of(stash, grad));
}

at::Tensor unread_flag(const at::Tensor& like) { return at::zeros({1}, like.options().dtype(at::kInt).requires_grad(false)); }

void scale_all(const std::vector<at::Tensor>& grads, double factor) {
  if (factor != 1 && !grads.empty()) kernels::multi_tensor_scale(unread_flag(grads.front()), grads, grads, factor);
}

at::Tensor scaled_norm(at::TensorList grads, double factor, const at::Tensor& found_inf) {
  const at::Tensor on_device = at::full({1}, factor, grads[0].options().dtype(at::kFloat).requires_grad(false));
  return std::get<0>(kernels::multi_tensor_unscale_l2norm(found_inf, grads, on_device, /*per_tensor=*/false));
}

bool has_nonzero(const at::Tensor& grad) { return grad.defined() && (grad.is_sparse() || at::any(grad).item<bool>()); }

void clear_grad(const at::Tensor& param, bool set_to_none) {
  at::Tensor& grad = param.mutable_grad();
  if (!grad.defined()) return;
  if (set_to_none) {
    grad.reset();
  } else {
    grad = grad.detach();
    grad.zero_();
  }
}

void forget_kernel_calls() { kernels::plan::forget_calls(); }

}  // namespace apex::amp::detail
