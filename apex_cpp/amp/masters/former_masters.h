#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/masters/grad_mark.h>
#include <apex_cpp/amp/tensors/weak_tensor_map.h>

#include <optional>

namespace apex::amp::detail {

/// A model's parameter that has or had a master, and what amp knew of its gradient.
struct KnownParam {
  at::Tensor param;
  GradMark mark;
};

/// Masters whose parameters were taken out of an optimizer's groups: a program may put either back, there or into another
/// optimizer. Holds none of the tensors.
class FormerMasters {
 public:
  void add(const at::Tensor& param, const at::Tensor& master, GradMark mark);
  /// By the parameter or the master, as long as the parameter is there.
  std::optional<KnownParam> find(const at::Tensor& tensor) const;

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Record {
    Weak param;
    GradMark mark;
  };

  WeakTensorMap<Record> records_;  // by either
};

}  // namespace apex::amp::detail
