#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

namespace apex::amp::detail {

/// Where a tensor's values were and which version they had, to tell later whether they are other ones. Host data; writes
/// through `tensor.data()` leave no version, nor do any to inference tensors.
class TensorVersion {
 public:
  TensorVersion() = default;
  explicit TensorVersion(const at::Tensor& tensor);

  /// Whether `tensor` is in the memory of that one, whatever was written to it.
  bool same_memory(const at::Tensor& tensor) const;
  bool still(const at::Tensor& tensor) const;
  /// Whether anybody holds the memory still.
  bool memory_lives() const { return memory_ && !memory_->expired(); }

 private:
  uint32_t version_ = 0;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;  // keeps the address from being used again
};

/// The memory of a tensor; null for an undefined or a sparse one.
c10::StorageImpl* memory_of(const at::Tensor& tensor);

/// What a gradient was when amp last looked at it, to tell afterwards whether the program has written to it since, or has put
/// another in its place.
///
/// Versions show most writes. Those through `tensor.data()`, as `torch::nn::utils::clip_grad_norm_` makes, show because the
/// mark shares the gradient's memory copy-on-write: whoever asks for it for writing gets memory of the gradient's own, and the
/// mark keeps the values of before. Nothing is copied unless somebody does, and nothing synchronises but `was_changed`. On a
/// CUDA stream other than the default one no memory is shared, and writes through `tensor.data()` do not show.
class GradSnapshot {
 public:
  GradSnapshot() = default;
  explicit GradSnapshot(const at::Tensor& grad);

  /// Whether there was a gradient.
  bool defined() const { return defined_; }
  bool same_memory(const at::Tensor& grad) const { return trace_.same_memory(grad); }
  /// Whether nobody has written to it, or seems to have: who asks for memory for writing may only read it.
  bool still(const at::Tensor& grad) const;
  /// Whether `grad` has values that the marked one has not. Zeros count as none: a zero_grad writes them. Synchronises unless
  /// `still`.
  bool was_changed(const at::Tensor& grad) const;
  /// Whether there was a gradient, and `grad` is none or has become zeros. Synchronises as `was_changed`.
  bool was_dropped(const at::Tensor& grad) const;
  /// Lets go of the values, so that the memory goes with the gradient.
  void forget_values() { values_.reset(); }

 private:
  bool has_values_of(const at::Tensor& grad) const;

  bool defined_ = false;
  bool shares_memory_ = false;
  TensorVersion trace_;
  c10::intrusive_ptr<c10::StorageImpl> values_;
};

/// Values of a 16-bit tensor, evenly spaced, to tell later whether it has others: what a write through `tensor.data()` leaves,
/// which has no version. Holds a hash of them; none of a tensor that is not on a CPU, where looking would wait for the device.
class ValueFingerprint {
 public:
  ValueFingerprint() = default;
  explicit ValueFingerprint(const at::Tensor& tensor) : hash_(hash_of(tensor)) {}

  bool still(const at::Tensor& tensor) const { return hash_ == hash_of(tensor); }

 private:
  static uint64_t hash_of(const at::Tensor& tensor);

  uint64_t hash_ = 0;
};

/// Takes `item` out of the list that begins at `top` and goes on by each one's `outer`, wherever in it it stands; nothing where
/// it is not in it.
template <class T>
void unlink(T*& top, const T* item, T* T::*outer) {
  T** link = &top;
  while (*link && *link != item) link = &((*link)->*outer);
  if (*link) *link = item->*outer;
}

/// What is known of tensors, without holding them. Weak references keep the addresses, by which values are found, from being
/// used again; values of tensors that are gone are dropped as the map grows. Not thread-safe.
template <class Value>
class WeakTensorMap {
 public:
  /// Gives `tensor` a value in place of the one it has.
  void set(const at::Tensor& tensor, Value value) {
    make_room();
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(value)});
  }
  /// The value of `tensor`, an empty one if it has none yet.
  Value& at(const at::Tensor& tensor) {
    make_room();
    return entries_.try_emplace(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), Value()})
        .first->second.value;
  }
  void erase(const at::Tensor& tensor) { entries_.erase(tensor.unsafeGetTensorImpl()); }

  /// Null for a tensor without a value.
  const Value* find(const at::Tensor& tensor) const {
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : &found->second.value;
  }
  Value* find(const at::Tensor& tensor) { return const_cast<Value*>(std::as_const(*this).find(tensor)); }
  bool has(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  /// Those that were not dropped yet.
  size_t size() const { return entries_.size(); }

  /// Visits the tensors that are still there with their values, each once, in no order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [impl, entry] : entries_) {
      if (auto alive = entry.tensor.lock()) visit(at::Tensor(std::move(alive)), entry.value);
    }
  }

  void drop_expired() {
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.tensor.expired() ? entries_.erase(it) : std::next(it);
    }
    next_sweep_ = std::max(kFirstSweep, 2 * entries_.size());
  }

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;
    Value value;
  };
  static constexpr size_t kFirstSweep = 256;

  void make_room() {
    if (entries_.size() >= next_sweep_) drop_expired();
  }

  std::unordered_map<const at::TensorImpl*, Entry> entries_;
  size_t next_sweep_ = kFirstSweep;
};

}  // namespace apex::amp::detail
