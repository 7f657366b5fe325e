#include <apex_cpp/amp/tensors/tensor_version.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <cstring>

namespace apex::amp::detail {
namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

TensorVersion::TensorVersion(const at::Tensor& tensor) {
  if (!memory_of(tensor)) return;
  version_ = version_of(tensor);
  memory_ = tensor.storage().getWeakStorageImpl();
}

bool TensorVersion::same_memory(const at::Tensor& tensor) const {
  return memory_ && memory_->_unsafe_get_target() == memory_of(tensor);
}

bool TensorVersion::matches(const at::Tensor& tensor) const { return same_memory(tensor) && version_of(tensor) == version_; }

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  const bool has_memory = tensor.defined() && tensor.has_storage();
  return has_memory ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

namespace {

// LibTorch copies copy-on-write memory on the default stream, unordered with a stream that writes the gradient.
bool may_share(const at::Tensor& grad) {
  if (!memory_of(grad) || !grad.is_cuda()) return memory_of(grad) != nullptr;
  const c10::impl::VirtualGuardImpl device(grad.device().type());
  return device.getStream(grad.device()) == device.getDefaultStream(grad.device());
}

bool is_shared(const at::Tensor& tensor) { return torch_compat::is_shared_until_written(*memory_of(tensor)); }

}  // namespace

GradSnapshot::GradSnapshot(const at::Tensor& grad) : defined_(grad.defined()), version_(grad) {
  if (may_share(grad)) values_ = torch_compat::share_until_written(*memory_of(grad));
  shares_memory_ = values_ != nullptr;
}

bool GradSnapshot::matches(const at::Tensor& grad) const {
  return version_.matches(grad) && (!shares_memory_ || is_shared(grad));
}

bool GradSnapshot::was_changed(const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  return !matches(grad) && has_nonzero(grad) && !has_values_of(grad);
}

bool GradSnapshot::was_dropped(const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  if (!defined_ || !grad.defined()) return defined_;
  if (matches(grad) || has_nonzero(grad)) return false;
  return !version_.matches(grad) || !has_values_of(grad);  // zeros written over zeros count as zero_grad, too
}

bool GradSnapshot::has_values_of(const at::Tensor& grad) const {
  if (!values_ || !same_memory(grad)) return false;
  const at::Tensor recorded =
      at::empty({0}, grad.options()).set_(c10::Storage(values_), grad.storage_offset(), grad.sizes(), grad.strides());
  return at::allclose(grad, recorded, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

namespace {

// Each sample reads one cache line; a step reads and writes the whole tensor.
constexpr int64_t kSamples = 128;

}  // namespace

uint64_t ValueFingerprint::hash_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.element_size() != sizeof(uint16_t) || !tensor.is_non_overlapping_and_dense()) return 0;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t numel = tensor.numel(), step = (numel + kSamples - 1) / kSamples;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 16 bits at a time
  for (int64_t i = 0; i < numel; i += step) {
    uint16_t value = 0;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(value)), sizeof(value));
    hash = (hash ^ value) * 0x100000001b3;
  }
  return hash;
}

bool samples_agree(const at::Tensor& rounded, const at::Tensor& exact) {
  const bool are_read = rounded.is_cpu() && exact.is_cpu() && is_low_precision(rounded.scalar_type()) &&
                        exact.scalar_type() == at::kFloat && rounded.is_non_overlapping_and_dense() &&
                        rounded.sizes() == exact.sizes() && rounded.strides() == exact.strides();
  if (!are_read) return true;
  const int64_t numel = rounded.numel(), step = (numel + kSamples - 1) / kSamples;
  bool agree = true;
  AT_DISPATCH_REDUCED_FLOATING_TYPES(rounded.scalar_type(), "samples_agree", [&] {
    const auto* const values = rounded.const_data_ptr<scalar_t>();
    const float* const wide = exact.const_data_ptr<float>();
    for (int64_t i = 0; i < numel && agree; i += step)
      agree = std::isnan(wide[i]) || values[i] == static_cast<scalar_t>(wide[i]);
  });
  return agree;
}

at::Tensor exact_where_rounded(const at::Tensor& values, const at::Tensor& exact, const at::Tensor& others,
                               at::ScalarType dtype) {
  const auto rounded_to = is_low_precision(values.scalar_type()) ? values.scalar_type() : dtype;
  return at::where(values == exact.to(rounded_to), exact, others);
}

}  // namespace apex::amp::detail
