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

/// Records a tensor's memory and version counter, to tell later whether the tensor was written to or replaced. Host data.
/// Writes through `tensor.data()` and writes to inference tensors do not change the version counter.
class TensorVersion {
 public:
  TensorVersion() = default;
  explicit TensorVersion(const at::Tensor& tensor);

  /// Whether `tensor` uses the recorded memory, at any version.
  bool same_memory(const at::Tensor& tensor) const;
  /// Whether `tensor` uses the recorded memory at the recorded version.
  bool matches(const at::Tensor& tensor) const;
  /// Whether any tensor still owns the recorded memory.
  bool memory_is_alive() const { return memory_ && !memory_->expired(); }

 private:
  uint32_t version_ = 0;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;  // a weak reference, so that the address is not reused
};

/// The storage of a tensor; null for an undefined or a sparse tensor.
c10::StorageImpl* memory_of(const at::Tensor& tensor);

/// Records a gradient when amp has read it, to tell later whether the program wrote to it or replaced it.
///
/// The version counter detects most writes. Writes through `tensor.data()`, such as those of
/// `torch::nn::utils::clip_grad_norm_`, are detected by copy-on-write: the snapshot shares the gradient's memory, a writer gets
/// a copy, and the snapshot keeps the old values. Without a write nothing is copied. Only `was_changed` and `was_dropped`
/// synchronise. On a CUDA stream other than the default stream no memory is shared, and writes through `tensor.data()` are not
/// detected.
class GradSnapshot {
 public:
  GradSnapshot() = default;
  explicit GradSnapshot(const at::Tensor& grad);

  /// Whether the parameter had a gradient.
  bool defined() const { return defined_; }
  bool same_memory(const at::Tensor& grad) const { return version_.same_memory(grad); }
  /// Whether `grad` is the recorded gradient and nothing has asked for write access to it. A caller that asked for write access
  /// but only read counts as a writer.
  bool matches(const at::Tensor& grad) const;
  /// Whether `grad` has other values than the recorded gradient. False for an undefined or all-zero `grad`, which `zero_grad`
  /// leaves. Synchronises unless `matches`.
  bool was_changed(const at::Tensor& grad) const;
  /// Whether a recorded gradient is now undefined, or was overwritten with zeros. Synchronises unless `matches`.
  bool was_dropped(const at::Tensor& grad) const;
  /// Releases the shared memory; it is then freed together with the gradient.
  void forget_values() { values_.reset(); }

 private:
  bool has_values_of(const at::Tensor& grad) const;

  bool defined_ = false;
  bool shares_memory_ = false;
  TensorVersion version_;
  c10::intrusive_ptr<c10::StorageImpl> values_;
};

/// A hash of up to 128 evenly spaced values of a 16-bit CPU tensor. Detects most writes through `tensor.data()`, which do not
/// change the version counter. Other tensors hash to 0: reading a GPU tensor would wait for the device.
class ValueFingerprint {
 public:
  ValueFingerprint() = default;
  explicit ValueFingerprint(const at::Tensor& tensor) : hash_(hash_of(tensor)) {}

  bool matches(const at::Tensor& tensor) const { return hash_ == hash_of(tensor); }

 private:
  static uint64_t hash_of(const at::Tensor& tensor);

  uint64_t hash_ = 0;
};

/// Whether up to 128 evenly spaced values of a 16-bit CPU tensor are those of `exact`, float32, rounded. NaN counts as equal.
/// True for other tensors, and for other layouts.
bool samples_agree(const at::Tensor& rounded, const at::Tensor& exact);

/// A model parameter whose values equal its rounded master, to detect writes by the program.
class WeightRecord {
 public:
  WeightRecord() = default;
  explicit WeightRecord(const at::Tensor& param) : version_(param), values_(param) {}

  /// Whether no write shows.
  bool matches(const at::Tensor& param) const { return version_.matches(param) && values_.matches(param); }
  /// Whether the version counter is unchanged. Writes through `tensor.data()` do not change it.
  bool has_version_of(const at::Tensor& param) const { return version_.matches(param); }
  /// Whether sampled values changed although the version counter did not: a write through `tensor.data()`.
  bool shows_hidden_write(const at::Tensor& param) const { return has_version_of(param) && !values_.matches(param); }

 private:
  TensorVersion version_;
  ValueFingerprint values_;
};

/// Elements of `exact` where `values`, of a weight, equal their rounded value; elements of `others` elsewhere: masters keep
/// FP32 precision where weights were not written. Rounded to the weight's dtype, or to its former one, `dtype`, if it is FP32
/// now.
at::Tensor exact_where_rounded(const at::Tensor& values, const at::Tensor& exact, const at::Tensor& others,
                               at::ScalarType dtype);

/// Removes `item` from the linked list that starts at `top` and is linked by `outer`; no-op if absent.
template <class T>
void unlink(T*& top, const T* item, T* T::*outer) {
  T** link = &top;
  while (*link && *link != item) link = &((*link)->*outer);
  if (*link) *link = item->*outer;
}

/// A map from tensors to values that does not keep the tensors alive. Keys are TensorImpl addresses; weak references prevent
/// their reuse. Entries of freed tensors are dropped as the map grows. Not thread-safe.
template <class Value>
class WeakTensorMap {
 public:
  /// Sets or replaces the value of `tensor`.
  void set(const at::Tensor& tensor, Value value) {
    sweep_if_due();
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(value)});
  }
  /// The value of `tensor`; inserts a default value if absent.
  Value& at(const at::Tensor& tensor) {
    sweep_if_due();
    return entries_.try_emplace(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), Value()})
        .first->second.value;
  }
  void erase(const at::Tensor& tensor) { entries_.erase(tensor.unsafeGetTensorImpl()); }

  /// Null if absent.
  const Value* find(const at::Tensor& tensor) const {
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : &found->second.value;
  }
  Value* find(const at::Tensor& tensor) { return const_cast<Value*>(std::as_const(*this).find(tensor)); }
  bool has(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  /// Number of entries, including freed tensors that were not dropped yet.
  size_t size() const { return entries_.size(); }

  /// Visits each live tensor with its value, in no particular order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [impl, entry] : entries_) {
      if (auto alive = entry.tensor.lock()) visit(at::Tensor(std::move(alive)), entry.value);
    }
  }

  /// Drops the entries of freed tensors.
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

  void sweep_if_due() {
    if (entries_.size() >= next_sweep_) drop_expired();
  }

  std::unordered_map<const at::TensorImpl*, Entry> entries_;
  size_t next_sweep_ = kFirstSweep;
};

}  // namespace apex::amp::detail
