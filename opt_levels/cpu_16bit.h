#pragma once

namespace apex::opt_levels {

/// How operators on 16-bit CPU tensors compute. What is stored is 16-bit either way.
enum class Cpu16Bit : unsigned char {
  automatic,  ///< "auto": `native` where the processor and oneDNN compute the type in hardware, else `float32`
  native,     ///< by LibTorch's own kernels for the type
  float32     ///< inputs become FP32, FP32 kernels compute, and the result is rounded once
};

}  // namespace apex::opt_levels
