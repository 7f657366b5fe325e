#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace apex::kernels::plan {

enum class Access { read, write };

// One list of a call: the name that errors use, its tensors, what the call does to them, and whether they may be float64.
struct TensorList {
  const char* name;
  at::TensorList tensors;
  Access access;
  bool takes_double = true;
  const char* role = nullptr;  // behind the name, where that does not say it
};

using TensorLists = c10::ArrayRef<TensorList>;

// "params[1]", or with a role "tensor_lists[0][1] (params)".
std::string name_of(const TensorList& list, size_t index);

// Throws c10::Error unless the lists of the call `op` fit together as kernels/multi_tensor.h says.
void check_lists(const char* op, TensorLists lists);

// Throws c10::Error unless `found_inf` is an int32 tensor of one element.
void check_found_inf(const char* op, const at::Tensor& found_inf);

}  // namespace apex::kernels::plan
