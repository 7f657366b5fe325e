#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>

namespace apex::amp::detail {

/// 16-bit copies of FP32 weights, so that a weight is cast once an iteration and all of its uses share one cast node
/// (CACHE-01, CACHE-08). Apex: `_amp_state.handle.cache`.
///
/// An entry holds for one tensor, dtype, storage and version, so a weight that was written in place, loaded, or given other
/// data is cast anew (Apex returned the old values: CACHE-07). In grad mode it must also require grad as the weight does
/// (CACHE-05). Writes through `tensor.data()` leave no trace; `clear` is called wherever amp itself makes room for them.
/// Thread-safe; entries of tensors that are gone are dropped as the cache grows.
class WeightCache {
 public:
  /// `weight`, an FP32 leaf, in `dtype`; `hit` tells whether it was there.
  at::Tensor cast(const at::Tensor& weight, c10::ScalarType dtype, bool& hit);
  void clear();
  size_t size() const;

 private:
  struct Entry {
    // Weak references keep the addresses, by which entries are found and compared, from being used again.
    c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> weight;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint32_t version;
    bool requires_grad;  // of `cast`
    at::Tensor cast;
    bool holds_for(const at::Tensor& tensor) const;
  };
  struct Key {
    const at::TensorImpl* weight;
    c10::ScalarType dtype;
    bool operator==(const Key& other) const { return weight == other.weight && dtype == other.dtype; }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return std::hash<const void*>()(key.weight) + static_cast<size_t>(key.dtype); }
  };
  using Entries = std::unordered_map<Key, Entry, KeyHash>;

  void drop_expired();

  mutable std::mutex mutex_;
  Entries entries_;
  size_t next_sweep_ = 256;
};

}  // namespace apex::amp::detail
