#pragma once

namespace torch {
class Library;
}

namespace apex::amp::detail {

// Registers unboxed kernels for all ATen operators of the built-in cast lists. The lists, not these functions, choose the
// policies.
void register_products(torch::Library& aten);
void register_functions(torch::Library& aten);
void register_layers(torch::Library& aten);
void register_arithmetic(torch::Library& aten);
void register_named(torch::Library& aten);

/// Registers all of them. This happens at load time, before other threads call the operators; a call of this function keeps the
/// linker from dropping them. Errors: as `check_only_copy`.
void register_unboxed_kernels();

/// Registers the kernel of `aten::bmm`, which is that of every listed product with one exception. The scores of
/// `torch::nn::MultiheadAttention`, the product of queries and keys that both lie in memory as heads, are returned in FP32
/// where the program would get 16 bits, because LibTorch's next step, the fill for a `key_padding_mask`, does not support
/// 16-bit types. The values are those of the 16-bit product. The softmax that follows runs in FP32, as at O1, and the product
/// with the values is 16-bit again. No exception while casts are off. Also registers the kernel of `aten::cat`: only `cat`
/// shows which keys `add_zero_attn` has extended.
void register_attention_scores(torch::Library& aten);

}  // namespace apex::amp::detail
