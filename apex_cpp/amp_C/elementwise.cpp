#include <apex_cpp/amp_C/elementwise.h>

#include "kernels/multi_tensor.h"

using namespace apex;

void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale) {
  amp_C::check_tensor_lists("multi_tensor_scale_cuda", chunk_size, noop_flag, tensor_lists, 2, {"in", "out"});
  kernels::multi_tensor_scale(noop_flag, tensor_lists[0], tensor_lists[1], scale);
}

void multi_tensor_axpby_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float a,
                             float b, int arg_to_check) {
  const char* const op = "multi_tensor_axpby_cuda";
  amp_C::check_tensor_lists(op, chunk_size, noop_flag, tensor_lists, 3, {"x", "y", "out"});
  TORCH_CHECK_VALUE(arg_to_check >= -1 && arg_to_check <= 1, op, ": arg_to_check is ", arg_to_check,
                    ". Use 0 for x, 1 for y or -1 for both.");
  kernels::multi_tensor_axpby(noop_flag, tensor_lists[0], tensor_lists[1], tensor_lists[2], a, b,
                              static_cast<kernels::CheckArg>(arg_to_check));
}
