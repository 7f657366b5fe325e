#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/masters/grad_mark.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <unordered_map>

namespace apex::amp::detail {

/// A model's parameter and its master, and what amp knew of the parameter's gradient.
struct KnownMaster {
  at::Tensor param;
  at::Tensor master;
  GradMark mark;
};

/// Masters whose parameters were taken out of an optimizer's groups: a program may put either back, there or into another
/// optimizer. Holds none of the tensors.
class FormerMasters {
 public:
  void add(const KnownMaster& known);
  /// By the parameter or the master, as long as the parameter is there.
  std::optional<KnownMaster> find(const at::Tensor& tensor) const;

 private:
  // Weak references keep the addresses, by which they are found, from being used again.
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Record {
    Weak param, master;
    GradMark mark;
  };
  void drop_expired();

  std::unordered_map<const at::TensorImpl*, Record> records_;  // by either
  size_t next_sweep_ = 256;
};

}  // namespace apex::amp::detail
