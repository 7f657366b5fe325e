#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace apex::amp_C::detail {

/// run(begin, end) for parts of the blocks 0 to `blocks` - 1, on all threads if `elements`, their work together, is worth it.
/// In the library, so that code that includes multi_tensor_apply.h runs in parallel without OpenMP flags of its own.
void for_each_host_block(int blocks, int64_t elements, c10::function_ref<void(int begin, int end)> run);

}  // namespace apex::amp_C::detail
