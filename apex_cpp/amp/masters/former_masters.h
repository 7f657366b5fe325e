#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/masters/grad_mark.h>
#include <apex_cpp/amp/tensors/weak_tensor_map.h>

#include <optional>

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
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Record {
    Weak param, master;
    GradMark mark;
  };

  WeakTensorMap<Record> records_;  // by either
};

}  // namespace apex::amp::detail
