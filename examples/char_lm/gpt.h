#pragma once
// A GPT: a transformer that predicts the next character. Pre-norm blocks, as GPT-2 has them.
#include <torch/nn.h>

#include <cmath>

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads, double dropout) : heads(heads), dropout(dropout) {
    register_module("norm1", norm1 = torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    register_module("norm2", norm2 = torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    register_module("qkv", qkv = torch::nn::Linear(width, 3 * width));
    register_module("attended", attended = torch::nn::Linear(width, width));
    register_module("up", up = torch::nn::Linear(width, 4 * width));
    register_module("down", down = torch::nn::Linear(4 * width, width));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + drop(attention(norm1(x)));
    return x + drop(down(torch::gelu(up(norm2(x)))));
  }

  /// Each character looks at itself and those before it.
  torch::Tensor attention(const torch::Tensor& x) {
    const auto count = x.size(0), length = x.size(1), width = x.size(2);
    // (3, count, heads, length, width of a head)
    const auto parts = qkv(x).view({count, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto y =
        torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{}, is_training() ? dropout : 0,
                                            /*is_causal=*/true);
    return attended(y.transpose(1, 2).reshape({count, length, width}));
  }

  torch::Tensor drop(const torch::Tensor& x) { return torch::dropout(x, dropout, is_training()); }

  int64_t heads;
  double dropout;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, attended{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct GPTImpl : torch::nn::Module {
  GPTImpl(int64_t vocabulary, int64_t context, int64_t width, int64_t heads, int64_t layers, double dropout)
      : context(context), dropout(dropout) {
    register_module("tokens", tokens = torch::nn::Embedding(vocabulary, width));
    register_module("positions", positions = torch::nn::Embedding(context, width));
    register_module("blocks", blocks);
    register_module("norm", norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width, heads, dropout));
    init_weights(layers);
  }

  /// characters: (count, length up to `context`), int64. Logits of the characters that follow: (count, length, vocabulary).
  torch::Tensor forward(const torch::Tensor& characters) {
    const auto places = torch::arange(characters.size(1), characters.device());
    auto x = torch::dropout(tokens(characters) + positions(places), dropout, is_training());
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::linear(norm(x), tokens->weight);  // tied: the table of characters, once more
  }

  /// N(0, 0.02), and smaller where a block adds to what comes by, so that the sum does not grow with the number of blocks.
  void init_weights(int64_t layers) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : named_parameters()) {
      if (parameter.value().dim() < 2) continue;
      const auto& name = parameter.key();
      const bool adds = name.find("attended") != std::string::npos || name.find("down") != std::string::npos;
      parameter.value().normal_(0, adds ? 0.02 / std::sqrt(2.0 * static_cast<double>(layers)) : 0.02);
    }
  }

  int64_t context;
  double dropout;
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(GPT);
