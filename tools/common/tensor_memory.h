#pragma once

#include <apex_cpp/amp/comparison/tensor_memory.h>

namespace tools {

using apex::amp::detail::Counting;
using apex::amp::detail::TensorMemory;

}  // namespace tools
