#pragma once

#include <c10/core/ScalarType.h>
#include <torch/library.h>

#include <string>

#include "opt_levels/properties.h"

namespace apex::amp::detail {

/// How operators on CPU tensors of one 16-bit type compute, and why.
struct CpuCompute {
  bool in_float32;   // matrix products and convolutions
  bool own_kernels;  // use apex_cpp's kernels where it has one; false only if the user asks for `native`
  std::string reason;
};

/// Decides how operators compute for `type`. For `automatic` the environment variable APEX_CPP_CPU_16BIT may say native or
/// float32. Otherwise the decision is made once per process: FP32 on a processor without instructions for the type, or if
/// ONEDNN_MAX_CPU_ISA disables them; else native, unless native kernels are several times slower in a measurement of a
/// twentieth of a second (the products of a small step, both ways, on one thread). Thread-safe. Errors: ValueError for another
/// value of the variable.
CpuCompute cpu_compute(opt_levels::Cpu16Bit wanted, c10::ScalarType type);

/// Registers the kernels of recurrent layers and cells in the cast engine.
void register_recurrent_layers();
/// Registers apex_cpp's kernels of ReLU, sums and batch norm for 16-bit CPU tensors.
void register_memory_bound_layers();
/// Registers the FP32 kernels of matrix products, convolutions and attention, and of their backward formulas, for 16-bit CPU
/// tensors. All registration happens at load time; a call of this function keeps the linker from dropping it.
void register_float32_kernels();

/// Registers the kernels of batch norm, forward and backward, for channels-last BFloat16 CPU tensors with FP32 parameters and
/// running statistics, as levels keep them. LibTorch handles all other tensors.
void register_batch_norm(torch::Library& aten);

/// Registers the kernels of convolutions of 16-bit CPU tensors and of their gradients: in FP32 like other products; where
/// BFloat16 is native, apex_cpp's kernels for channels-last convolutions in two dimensions.
void register_convolutions(torch::Library& aten);

}  // namespace apex::amp::detail
