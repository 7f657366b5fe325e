// A transformer that predicts tokens: pre-norm blocks of causal attention and GELU layers.
#include <ATen/Functions.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "network.h"

namespace bench::train {
namespace {

namespace nn = torch::nn;

struct TextSizes {
  int64_t width, heads, blocks, tokens, length, batch;
};

TextSizes text_sizes(bool quick) {
  if (quick) return {32, 2, 1, 64, 16, 2};
  return {256, 4, 4, 1024, 128, 8};
}

/// Token ids [N, length] to embeddings with positions [N, length, width].
struct PlacedEmbeddingImpl : nn::Module {
  explicit PlacedEmbeddingImpl(const TextSizes& sizes)
      : tokens(register_module("tokens", nn::Embedding(sizes.tokens, sizes.width))),
        places(register_parameter("places", at::randn({sizes.length, sizes.width}))) {}
  at::Tensor forward(const at::Tensor& ids) { return tokens(ids) + places; }

  nn::Embedding tokens;
  at::Tensor places;
};
TORCH_MODULE(PlacedEmbedding);

/// Maps [N, length, width] to the same shape.
struct TransformerBlockImpl : nn::Module {
  explicit TransformerBlockImpl(const TextSizes& sizes)
      : heads(sizes.heads),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        in(register_module("in", nn::Linear(sizes.width, 3 * sizes.width))),
        out(register_module("out", nn::Linear(sizes.width, sizes.width))),
        up(register_module("up", nn::Linear(sizes.width, 4 * sizes.width))),
        down(register_module("down", nn::Linear(4 * sizes.width, sizes.width))) {}

  at::Tensor attention(const at::Tensor& x) {
    const auto qkv = in(x).unflatten(-1, {3, heads, -1}).permute({2, 0, 3, 1, 4});  // [3, N, heads, length, width / heads]
    const auto mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = x + attention(norm1(x));
    return y + down(at::gelu(up(norm2(y))));
  }

  int64_t heads;
  nn::LayerNorm norm1, norm2;
  nn::Linear in, out, up, down;
};
TORCH_MODULE(TransformerBlock);

// Products so small that per-call overhead matters.
TextSizes small_text_sizes(bool quick) {
  if (quick) return text_sizes(quick);
  return {64, 4, 2, 256, 32, 4};
}

template <TextSizes kSizes(bool)>
Network transformer_network(bool quick) {
  const auto sizes = kSizes(quick);
  nn::Sequential layers{PlacedEmbedding(sizes)};
  for (int64_t block = 0; block < sizes.blocks; ++block) layers->push_back(TransformerBlock(sizes));
  layers->push_back(nn::LayerNorm(nn::LayerNormOptions({sizes.width})));
  layers->push_back(nn::Linear(sizes.width, sizes.tokens));
  layers->push_back(nn::Flatten(nn::FlattenOptions().start_dim(0).end_dim(1)));
  return Network(layers);
}

template <TextSizes kSizes(bool)>
Batch text(bool quick) {
  const auto sizes = kSizes(quick);
  return {at::randint(sizes.tokens, {sizes.batch, sizes.length}, at::kLong),
          at::randint(sizes.tokens, {sizes.batch * sizes.length}, at::kLong)};
}

}  // namespace

Task transformer_task() { return {"transformer", transformer_network<text_sizes>, text<text_sizes>}; }
Task small_transformer_task() { return {"small", transformer_network<small_text_sizes>, text<small_text_sizes>}; }

}  // namespace bench::train
