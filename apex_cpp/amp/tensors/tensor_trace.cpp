#include <apex_cpp/amp/tensors/tensor_trace.h>

namespace apex::amp::detail {
namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

TensorTrace::TensorTrace(const at::Tensor& tensor) {
  if (!memory_of(tensor)) return;
  version_ = version_of(tensor);
  memory_ = tensor.storage().getWeakStorageImpl();
}

bool TensorTrace::same_memory(const at::Tensor& tensor) const {
  return memory_ && memory_->_unsafe_get_target() == memory_of(tensor);
}

bool TensorTrace::still(const at::Tensor& tensor) const { return same_memory(tensor) && version_of(tensor) == version_; }

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  const bool has_memory = tensor.defined() && tensor.has_storage();
  return has_memory ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace apex::amp::detail
