#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace apex::amp::detail {

/// The names that tensors have in the models. A weak reference to each keeps its address from being taken by another tensor.
class ParameterNames {
 public:
  /// The first name counts where a tensor has several.
  void add(const at::Tensor& tensor, std::string name) {
    names_.try_emplace(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(name)});
  }
  bool has(const at::Tensor& tensor) const { return names_.count(tensor.unsafeGetTensorImpl()) > 0; }
  /// Null for a tensor of no model.
  const std::string* find(const at::Tensor& tensor) const {
    const auto found = names_.find(tensor.unsafeGetTensorImpl());
    return found == names_.end() ? nullptr : &found->second.name;
  }

  /// Visits the tensors that are still there, each once, in no order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [impl, entry] : names_) {
      if (auto alive = entry.tensor.lock()) visit(entry.name, at::Tensor(std::move(alive)));
    }
  }

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;
    std::string name;
  };
  std::unordered_map<const at::TensorImpl*, Entry> names_;
};

/// The names of the newest `initialize`; null before it and after `reset`. From any thread.
std::shared_ptr<const ParameterNames> newest_parameter_names();
void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names);

}  // namespace apex::amp::detail
