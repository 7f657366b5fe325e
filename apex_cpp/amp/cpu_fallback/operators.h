#pragma once

#include <torch/library.h>

namespace apex::amp::detail {

/// Gives recurrent layers and cells their kernels in the cast engine.
void register_recurrent_layers();
/// Gives ReLU, sums and batch norm of 16-bit CPU tensors kernels of ours.
void register_memory_bound_layers();
/// Gives matrix products, convolutions and attention, as autograd sees them, and their backward formulas their kernels for
/// 16-bit CPU tensors. All are done when the program is loaded; calling this makes sure that the linker keeps them.
void register_float32_kernels();

/// Gives batch norm of BFloat16 CPU tensors, forward and backward, its kernels: for channels-last tensors with parameters and
/// running statistics in FP32, as levels keep them. All else is left to LibTorch.
void register_batch_norm(torch::Library& aten);

/// Gives convolutions of 16-bit CPU tensors, and their gradients, their kernels: in FP32 like other products, and where
/// BFloat16 is native, for channels-last convolutions in two dimensions, kernels of ours.
void register_convolutions(torch::Library& aten);

}  // namespace apex::amp::detail
