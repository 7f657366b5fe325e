#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

namespace apex::amp_C::detail {

/// What a function does to the tensors of a list. One that it does not look at may hold anything.
enum class Use { none, read, write };

/// Of a list that may be float64, beside float16, bfloat16 and float32.
constexpr bool kAlsoDouble = true;

/// A list that a function takes.
struct Role {
  const char* name;
  Use use;
  bool takes_double = !kAlsoDouble;
};

/// check_tensor_lists for a function of these lists, and all that its kernels ask of their tensors, in its own name: that
/// dtypes are supported and no output shares memory with another tensor. A function may run several kernels, and the last must
/// not refuse what the first has changed.
void check_roles(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                 c10::ArrayRef<Role> roles);

}  // namespace apex::amp_C::detail
