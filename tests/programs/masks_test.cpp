// LibTorch's own attention modules with their masks.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class MaskPrograms : public AmpTest {};

/// LibTorch's attention with both of its masks; the label is which symbol stands first, and padding follows at random.
struct PaddedAttentionImpl : torch::nn::Module {
  PaddedAttentionImpl() {
    embed = register_module("embed", torch::nn::Embedding(4, 8));
    positions = register_buffer("positions", torch::randn({5, 8}));
    attention = register_module("attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 2)));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& tokens) {
    const auto padding = tokens.eq(3);
    const auto x = (embed(tokens) + positions).transpose(0, 1);
    const auto later = torch::ones({tokens.size(1), tokens.size(1)}, torch::kBool).triu(1);
    const auto y = std::get<0>(attention(x, x, x, padding, /*need_weights=*/true, later));
    return head(y.transpose(0, 1).masked_fill(padding.unsqueeze(-1), 0).sum(1));
  }
  torch::nn::Embedding embed{nullptr};
  Tensor positions;
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(PaddedAttention);

Tensor padded_tokens() {
  auto tokens = torch::randint(3, {16, 5});
  const auto lengths = torch::randint(1, 6, {16, 1});
  return tokens.masked_fill(torch::arange(5).unsqueeze(0) >= lengths, 3);
}

TEST_F(MaskPrograms, MultiheadAttentionWithBothMasks) {
  expect_trains_as_without_amp([](auto& amp) {
    PaddedAttention model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto tokens = padded_tokens();
    train(amp, opt, 60, [&] {
      const auto logits = net->forward(tokens);
      amp.output(logits);
      return torch::cross_entropy_loss(logits, tokens.select(1, 0));
    });
  });
}

/// LibTorch's encoder; the masks are made by the caller.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0);
    embed = register_module("embed", torch::nn::Embedding(4, 8));
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                             torch::nn::TransformerEncoderLayer(layer), 1)));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& tokens, const Tensor& mask, const Tensor& padding) {
    const auto y = encoder(embed(tokens).transpose(0, 1), mask, padding).transpose(0, 1);
    return head(y.masked_fill(padding.unsqueeze(-1), 0).sum(1));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Encoder);

TEST_F(MaskPrograms, TransformerEncoderWithBothMasks) {
  expect_trains_as_without_amp([](auto& amp) {
    Encoder model;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto tokens = padded_tokens();
    const auto mask = torch::zeros({5, 5}).masked_fill(torch::ones({5, 5}, torch::kBool).triu(1), -1e4);
    train(amp, opt, 40, [&] {
      const auto logits = net->forward(tokens, mask, tokens.eq(3));
      amp.output(logits);
      return torch::cross_entropy_loss(logits, tokens.select(1, 0));
    });
  });
}

}  // namespace
}  // namespace apex::test::programs
