#pragma once

#include <ATen/core/Tensor.h>

namespace apex::kernels::plan {

enum class Access { read, write };

// One list of a call: the name that errors use, its tensors, and what the call does to them.
struct TensorList {
  const char* name;
  at::TensorList tensors;
  Access access;
};

using TensorLists = c10::ArrayRef<TensorList>;

// Throws c10::Error unless the lists of the call `op` fit together as kernels/multi_tensor.h says.
void check_lists(const char* op, TensorLists lists);

// Throws c10::Error unless `found_inf` is an int32 tensor of one element.
void check_found_inf(const char* op, const at::Tensor& found_inf);

}  // namespace apex::kernels::plan
