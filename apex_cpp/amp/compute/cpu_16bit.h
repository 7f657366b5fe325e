#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "opt_levels/cpu_16bit.h"

namespace apex::amp::detail {

/// How operators on CPU tensors of one 16-bit type compute, and why.
struct CpuCompute {
  bool in_float32;
  std::string reason;
};

/// What `wanted` comes down to for `type`. For `automatic` the environment variable APEX_CPP_CPU_16BIT may say native or
/// float32; else it is decided once a process: FP32 on a processor without instructions for the type, and where it has them, by
/// the time that the products of a small step take both ways, which takes some hundredths of a second and sees what limits
/// oneDNN. Thread-safe. Errors: ValueError for another value of the variable.
CpuCompute cpu_compute(opt_levels::Cpu16Bit wanted, c10::ScalarType type);

}  // namespace apex::amp::detail
