#pragma once

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
