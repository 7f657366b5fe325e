#include "kernels/plan/tensor_lists.h"

#include "kernels/memory_order.h"
#include "kernels/plan/overlap.h"

namespace apex::kernels::plan {
namespace {

bool takes(const TensorList& list, at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || (dtype == at::kDouble && list.takes_double);
}

void check_tensor(const char* op, const TensorList& list, size_t index) {
  const at::Tensor& tensor = list.tensors[index];
  TORCH_CHECK(tensor.defined(), op, ": ", name_of(list, index), " is undefined. Leave out parameters without a gradient.");
  TORCH_CHECK(tensor.layout() == at::kStrided, op, ": ", name_of(list, index), " has layout ", tensor.layout(),
              ". Only dense tensors are supported: call to_dense() first.");
  TORCH_CHECK(takes(list, tensor.scalar_type()), op, ": ", name_of(list, index), " has dtype ", tensor.scalar_type(),
              ". Supported are ", list.takes_double ? "Half, BFloat16, Float and Double" : "Half, BFloat16 and Float", ".");
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), op, ": ", name_of(list, index), " with sizes ", tensor.sizes(),
              " and strides ", tensor.strides(), " does not fill its memory without gaps or repeats. Call contiguous() first.");
}

void check_pair(const char* op, const TensorList& a, const TensorList& b, size_t index) {
  const at::Tensor& left = a.tensors[index];
  const at::Tensor& right = b.tensors[index];
  TORCH_CHECK(left.numel() == right.numel(), op, ": ", name_of(a, index), " has ", left.numel(), " elements (sizes ",
              left.sizes(), ") and ", name_of(b, index), " has ", right.numel(), " (sizes ", right.sizes(),
              "). Tensors of one index must have the same number of elements.");
  TORCH_CHECK(left.device() == right.device(), op, ": ", name_of(a, index), " is on ", left.device(), " and ",
              name_of(b, index), " on ", right.device(), ". Tensors of one index must be on the same device.");
  TORCH_CHECK(same_memory_order(left, right), op, ": ", name_of(a, index), " has sizes ", left.sizes(), " and strides ",
              left.strides(), ", ", name_of(b, index), " has sizes ", right.sizes(), " and strides ", right.strides(),
              ". Tensors of one index must have the same memory layout: make both contiguous.");
}

}  // namespace

std::string name_of(const TensorList& list, size_t index) {
  return c10::str(list.name, "[", index, "]", list.role != nullptr ? c10::str(" (", list.role, ")") : "");
}

void check_lists(const char* op, TensorLists lists) {
  const TensorList& first = lists.front();
  for (const TensorList& list : lists) {
    TORCH_CHECK(list.tensors.size() == first.tensors.size(), op, ": size mismatch: ", first.name, " has ", first.tensors.size(),
                " tensors and ", list.name, " has ", list.tensors.size(),
                ". Lists are matched by index and must have the same length.");
  }
  for (size_t index = 0; index < first.tensors.size(); ++index) {
    for (const TensorList& list : lists) check_tensor(op, list, index);
    for (const TensorList& list : lists.slice(1)) check_pair(op, first, list, index);
  }
  check_outputs_apart(op, lists);
}

void check_found_inf(const char* op, const at::Tensor& found_inf) {
  TORCH_CHECK(found_inf.defined(), op, ": found_inf is undefined. Pass an int32 tensor of one element.");
  TORCH_CHECK(found_inf.scalar_type() == at::kInt && found_inf.numel() == 1, op,
              ": found_inf must be an Int tensor of one element, got ", found_inf.scalar_type(), " with sizes ",
              found_inf.sizes(), ".");
}

}  // namespace apex::kernels::plan
