#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

/// out = in * `scale`, in float32. Lists: in, out; the same tensors in both work in place. A product too large for the dtype of
/// out becomes Inf there without being reported.
/// Flag: set to 1 if an element of `in` is not finite. Outputs are written all the same, whatever the flag was.
/// Apex: multi_tensor_scale.
void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale);

/// out = `a` * x + `b` * y, in float32. Lists: x, y, out; out may be x or y.
/// `arg_to_check`: which inputs are searched for non-finite values: 0 is x, 1 is y, -1 both. ValueError for others, which Apex
/// takes for "none".
/// Flag: set to 1 if one is found. Outputs are written all the same, whatever the flag was.
/// Apex: multi_tensor_axpby.
void multi_tensor_axpby_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float a,
                             float b, int arg_to_check);
