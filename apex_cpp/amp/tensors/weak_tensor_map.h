#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace apex::amp::detail {

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
