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

namespace torch {
class Library;
}

namespace apex::amp::detail {

/// Gives `aten::bmm` its kernel: that of every listed product, with one exception. The scores of
/// `torch::nn::MultiheadAttention`, the product of queries and keys that both lie in memory as its heads do, come out in FP32
/// where the program would get 16 bits, since LibTorch's next step, the fill for a `key_padding_mask`, knows no 16-bit type.
/// The values are those of the 16-bit product; what follows, a softmax, runs in FP32 as at O1 anyway, and the product with the
/// values is 16-bit again. Where casts are off nothing of this happens. `aten::cat` gets its kernel here too, since keys to
/// which `add_zero_attn` adds a step are known by nothing else.
void register_attention_scores(torch::Library& aten);

}  // namespace apex::amp::detail
