#include <apex_cpp/amp/casts/weight_cache.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {

bool WeightCache::Entry::holds_for(const at::Tensor& tensor, uint64_t in_forward) const {
  if (!trace.still(tensor) || !place.is_of(tensor)) return false;
  const bool is_of_this_forward = in_forward != 0 && forward == in_forward;
  if (!at::GradMode::is_enabled()) return is_of_this_forward;
  return tensor.requires_grad() == requires_grad && (kept || is_of_this_forward);
}

void WeightCache::keep(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.set(weight, Fp32Rule());
}

WeightCache::Entry* WeightCache::in_dtype(Entries* entries, c10::ScalarType dtype) {
  if (!entries) return nullptr;
  const auto found =
      std::find_if(entries->begin(), entries->end(), [&](const Entry& entry) { return entry.cast.scalar_type() == dtype; });
  return found == entries->end() ? nullptr : &*found;
}

at::Tensor WeightCache::find(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = in_dtype(entries_.find(weight), dtype);
  if (!entry || !entry->holds_for(weight, forward)) return {};
  if (forward != 0 && entry->forward != forward) {
    entry->cast.data().copy_(weight.data());
    entry->forward = forward;
  }
  return entry->cast;
}

at::Tensor WeightCache::cast(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward, bool& hit) {
  at::Tensor cast = find(weight, dtype, forward);
  hit = cast.defined();
  if (hit) return cast;
  cast = weight.to(dtype);
  Entry entry{TensorVersion(weight), Place(weight), cast.requires_grad(), false, forward, cast};
  const std::lock_guard<std::mutex> lock(mutex_);
  entry.kept = kept_.has(weight);
  if (!entry.kept && forward == 0) return cast;
  Entries& entries = entries_.at(weight);
  if (Entry* const earlier = in_dtype(&entries, dtype)) {
    *earlier = std::move(entry);
  } else {
    entries.push_back(std::move(entry));
  }
  return cast;
}

void WeightCache::clear() {
  WeakTensorMap<Entries> dropped;  // freed without the lock: freeing tensors runs foreign code
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(dropped, entries_);
}

size_t WeightCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace apex::amp::detail
