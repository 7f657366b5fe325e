#pragma once

#include <apex_cpp/amp/comparison/measurement.h>

namespace tools {

using apex::amp::detail::Counting;
using apex::amp::detail::TensorMemory;

}  // namespace tools
