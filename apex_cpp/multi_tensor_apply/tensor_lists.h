#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace apex::amp_C::detail {

/// Calls run(begin, end) for ranges of the blocks 0 to `blocks` - 1, on all threads if `elements` of work are enough for
/// several. It is not inline, so that programs that include multi_tensor_apply.h run in parallel without OpenMP flags.
void for_each_host_block(int blocks, int64_t elements, c10::function_ref<void(int begin, int end)> run);

}  // namespace apex::amp_C::detail

namespace apex::amp_C {

/// tensor_lists[i][t]: list i is a role (gradients, parameters, ...), t the tensor. Lists are matched by index.
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// Throws unless the tensors and the flag meet the requirements of all multi-tensor functions (MTA-02):
/// - `depth` lists of the same length, at least 1;
/// - dense tensors without gaps or repeats, all on one device, each list of one dtype;
/// - tensors of one index with the same number of elements and the same memory layout;
/// - `chunk_size` above 0 (c10::ValueError), and `noop_flag` an int32 tensor of one element on the tensors' device.
/// Apex reads the dtype from each list's first tensor and does not compare layouts. Here a list of several dtypes (MTA-03) and
/// tensors of different layouts (MTA-04) are errors. `roles`: names of the lists for errors, in addition to tensor_lists[i].
void check_tensor_lists(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                        size_t depth, c10::ArrayRef<const char*> roles = {});

}  // namespace apex::amp_C
