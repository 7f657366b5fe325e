#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace apex::amp_C::detail {

/// run(begin, end) for parts of the blocks 0 to `blocks` - 1, on all threads if `elements`, their work together, is worth it.
/// In the library, so that code that includes multi_tensor_apply.h runs in parallel without OpenMP flags of its own.
void for_each_host_block(int blocks, int64_t elements, c10::function_ref<void(int begin, int end)> run);

}  // namespace apex::amp_C::detail

namespace apex::amp_C {

/// tensor_lists[i][t]: list i is a role (gradients, parameters, ...), t the tensor. Lists are matched by index.
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// Throws unless tensors and flag are what every multi-tensor function expects (MTA-02), before anything is changed:
/// - `depth` lists of the same length, which is not 0;
/// - dense tensors without gaps or repeats, all on one device, each list of one dtype;
/// - tensors of one index with the same number of elements and the same memory layout;
/// - `chunk_size` above 0 (c10::ValueError), and `noop_flag` an int32 tensor of one element on the tensors' device.
/// Apex reads the dtype from each list's first tensor and compares no layouts. Here a list of several dtypes (MTA-03) and
/// tensors of different layouts (MTA-04) are errors. `roles`: what messages call the lists beside tensor_lists[i], or empty.
void check_tensor_lists(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                        size_t depth, c10::ArrayRef<const char*> roles = {});

}  // namespace apex::amp_C
