#include <apex_cpp/amp_C/detail/roles.h>
#include <apex_cpp/amp_C/elementwise.h>

#include "kernels/multi_tensor.h"

using namespace apex;
using amp_C::detail::check_roles;
using amp_C::detail::kAlsoDouble;
using amp_C::detail::Use;

void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale) {
  check_roles("multi_tensor_scale_cuda", chunk_size, noop_flag, tensor_lists,
              {{"in", Use::read, kAlsoDouble}, {"out", Use::write, kAlsoDouble}});
  kernels::multi_tensor_scale(noop_flag, tensor_lists[0], tensor_lists[1], scale);
}

void multi_tensor_axpby_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float a,
                             float b, int arg_to_check) {
  const char* const op = "multi_tensor_axpby_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"x", Use::read, kAlsoDouble}, {"y", Use::read, kAlsoDouble}, {"out", Use::write, kAlsoDouble}});
  TORCH_CHECK_VALUE(arg_to_check >= -1 && arg_to_check <= 1, op, ": arg_to_check is ", arg_to_check,
                    ". Use 0 for x, 1 for y or -1 for both.");
  kernels::multi_tensor_axpby(noop_flag, tensor_lists[0], tensor_lists[1], tensor_lists[2], a, b,
                              static_cast<kernels::CheckArg>(arg_to_check));
}
