#include <apex_cpp/amp/casts/weight_cache.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace apex::amp::detail {

bool WeightCache::Entry::holds_for(const at::Tensor& tensor, uint64_t in_forward) const {
  if (!trace.still(tensor)) return false;
  const bool is_of_this_forward = in_forward != 0 && forward == in_forward;
  if (!at::GradMode::is_enabled()) return is_of_this_forward;
  return tensor.requires_grad() == requires_grad && (kept || is_of_this_forward);
}

void WeightCache::keep(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.insert_or_assign(weight.unsafeGetTensorImpl(), Weak(weight.getIntrusivePtr()));
}

at::Tensor WeightCache::find(const Key& key, const at::Tensor& weight, uint64_t forward) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second.holds_for(weight, forward)) return {};
  Entry& entry = found->second;
  if (forward != 0 && entry.forward != forward) {
    entry.cast.data().copy_(weight.data());
    entry.forward = forward;
  }
  return entry.cast;
}

at::Tensor WeightCache::cast(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward, bool& hit) {
  const Key key{weight.unsafeGetTensorImpl(), dtype};
  at::Tensor cast = find(key, weight, forward);
  hit = cast.defined();
  if (hit) return cast;
  cast = weight.to(dtype);
  Entry entry{Weak(weight.getIntrusivePtr()), TensorTrace(weight), cast.requires_grad(), false, forward, cast};
  const std::lock_guard<std::mutex> lock(mutex_);
  entry.kept = kept_.count(key.weight) > 0;
  if (!entry.kept && forward == 0) return cast;
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
