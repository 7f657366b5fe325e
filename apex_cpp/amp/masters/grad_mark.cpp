#include <apex_cpp/amp/masters/grad_mark.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace apex::amp::detail {
namespace {

// torch copies shared memory of a GPU on the default stream, unordered with what writes the gradient on another.
bool may_share(const at::Tensor& grad) {
  if (!memory_of(grad) || !grad.is_cuda()) return memory_of(grad) != nullptr;
  const c10::impl::VirtualGuardImpl device(grad.device().type());
  return device.getStream(grad.device()) == device.getDefaultStream(grad.device());
}

bool is_shared(const at::Tensor& tensor) { return c10::impl::cow::is_cow_data_ptr(memory_of(tensor)->data_ptr()); }

}  // namespace

GradMark::GradMark(const at::Tensor& grad) : defined_(grad.defined()), trace_(grad) {
  if (may_share(grad)) values_ = c10::impl::cow::lazy_clone_storage(*memory_of(grad));
  shares_memory_ = values_ != nullptr;
}

bool GradMark::still(const at::Tensor& grad) const { return trace_.still(grad) && (!shares_memory_ || is_shared(grad)); }

bool GradMark::was_changed(const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  return !still(grad) && has_nonzero(grad) && !has_values_of(grad);
}

bool GradMark::was_dropped(const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  if (!defined_ || !grad.defined()) return defined_;
  if (still(grad) || has_nonzero(grad)) return false;
  return !trace_.still(grad) || !has_values_of(grad);  // zeros written over zeros are a zero_grad, too
}

bool GradMark::has_values_of(const at::Tensor& grad) const {
  if (!values_ || !same_memory(grad)) return false;
  const at::Tensor then =
      at::empty({0}, grad.options()).set_(c10::Storage(values_), grad.storage_offset(), grad.sizes(), grad.strides());
  return at::allclose(grad, then, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

}  // namespace apex::amp::detail
