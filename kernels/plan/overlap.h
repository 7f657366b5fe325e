#pragma once

#include "kernels/plan/tensor_lists.h"

namespace apex::kernels::plan {

// Throws c10::Error if an output shares memory with another tensor of the call, unless it is exactly (same start, same element
// size) an input of its own index: that is work in place. Expects tensors that are dense.
void check_outputs_apart(const char* op, TensorLists lists);

}  // namespace apex::kernels::plan
