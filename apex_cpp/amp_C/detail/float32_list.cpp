#include <apex_cpp/amp_C/detail/float32_list.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include "kernels/multi_tensor.h"

namespace apex::amp_C::detail {

Float32List::Float32List(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  if (tensors.front().scalar_type() != at::kDouble) return;
  for (const at::Tensor& tensor : tensors) copies_.push_back(at::empty_like(tensor, tensor.options().dtype(at::kFloat)));
  kernels::multi_tensor_copy(tensors_, copies_);
}

void Float32List::write_back(const at::Tensor& stop) const {
  if (copies_.empty()) return;
  if (!stop.defined()) return kernels::multi_tensor_copy(copies_, tensors_);
  const at::NoGradGuard no_grad;
  const at::Tensor stays = stop.ne(0).reshape({});
  for (size_t i = 0; i < copies_.size(); ++i) tensors_[i].copy_(at::where(stays, tensors_[i], copies_[i]));
}

}  // namespace apex::amp_C::detail
