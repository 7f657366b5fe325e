#include <apex_cpp/amp/casts/weight_cache.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace apex::amp::detail {

namespace {

uint32_t version_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->version_counter().current_version(); }

}  // namespace

bool WeightCache::Entry::holds_for(const at::Tensor& tensor) const {
  if (storage._unsafe_get_target() != tensor.storage().unsafeGetStorageImpl() || version != version_of(tensor)) return false;
  return !at::GradMode::is_enabled() || tensor.requires_grad() == requires_grad;
}

at::Tensor WeightCache::cast(const at::Tensor& weight, c10::ScalarType dtype, bool& hit) {
  const Key key{weight.unsafeGetTensorImpl(), dtype};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    hit = found != entries_.end() && found->second.holds_for(weight);
    if (hit) return found->second.cast;
  }
  at::Tensor cast = weight.to(dtype);
  Entry entry{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(weight.getIntrusivePtr()),
              weight.storage().getWeakStorageImpl(), version_of(weight), cast.requires_grad(), cast};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= next_sweep_) drop_expired();
  entries_.insert_or_assign(key, std::move(entry));
  return cast;
}

void WeightCache::drop_expired() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = entry->second.weight.expired() ? entries_.erase(entry) : std::next(entry);
  }
  next_sweep_ = std::max<size_t>(256, 2 * entries_.size());
}

void WeightCache::clear() {
  Entries dropped;  // freed without the lock: freeing tensors runs foreign code
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(entries_);
}

size_t WeightCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace apex::amp::detail
