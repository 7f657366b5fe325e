#pragma once

namespace torch {
class Library;
}

namespace apex::amp::detail {

// The ATen operators that have an unboxed kernel: all of the built-in cast lists. Which policy they follow is not said here.
void register_products(torch::Library& aten);
void register_functions(torch::Library& aten);
void register_layers(torch::Library& aten);
void register_arithmetic(torch::Library& aten);
void register_named(torch::Library& aten);

/// Gives these operators their kernels; done when the program is loaded, before it has threads that call them. Calling it makes
/// sure that the linker keeps them. Errors: as `check_only_copy`.
void register_unboxed_kernels();

}  // namespace apex::amp::detail
