#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "opt_levels/properties.h"

namespace apex::amp::detail {

/// How operators on CPU tensors of one 16-bit type compute, and why.
struct CpuCompute {
  bool in_float32;   // products
  bool own_kernels;  // where we have one; LibTorch's alone only where native kernels are asked for by name
  std::string reason;
};

/// What `wanted` comes down to for `type`. For `automatic` the environment variable APEX_CPP_CPU_16BIT may say native or
/// float32; else it is decided once a process: FP32 on a processor without instructions for the type, or where
/// ONEDNN_MAX_CPU_ISA takes them away; otherwise native, unless a measurement of a twentieth of a second, the products of a
/// small step both ways on one thread, shows native kernels to be several times slower. Thread-safe. Errors: ValueError for
/// another value of the variable.
CpuCompute cpu_compute(opt_levels::Cpu16Bit wanted, c10::ScalarType type);

}  // namespace apex::amp::detail
