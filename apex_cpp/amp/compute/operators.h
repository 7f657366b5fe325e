#pragma once

namespace apex::amp::detail {

/// Gives recurrent layers and cells their kernels in the cast engine.
void register_recurrent_layers();
/// Gives ReLU, sums and batch norm of 16-bit CPU tensors kernels of ours.
void register_memory_bound_layers();
/// Gives matrix products, convolutions and attention, as autograd sees them, and their backward formulas their kernels for
/// 16-bit CPU tensors. All are done when the program is loaded; calling this makes sure that the linker keeps them.
void register_float32_kernels();

}  // namespace apex::amp::detail
