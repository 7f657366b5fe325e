#include <apex_cpp/amp/grad_layout.h>

#include <ATen/ops/empty_like.h>

namespace apex::amp::detail {

at::Tensor in_layout_of(const at::Tensor& grad, const at::Tensor& like) {
  if (grad.strides() == like.strides()) return grad;
  return at::empty_like(like, like.options().dtype(grad.scalar_type())).copy_(grad);
}

}  // namespace apex::amp::detail
