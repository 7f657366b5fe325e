// A masked attention written by the program.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class AttentionPrograms : public AmpTest {};

/// Two heads over the first dimension's batch; `allowed` is true where a position may be looked at.
struct OwnAttentionImpl : torch::nn::Module {
  OwnAttentionImpl() {
    in = register_module("in", torch::nn::Linear(8, 24));
    out = register_module("out", torch::nn::Linear(8, 8));
  }
  Tensor forward(const Tensor& x, const Tensor& allowed) {
    const auto heads = in(x).view({x.size(0), x.size(1), 3, 2, 4}).permute({2, 0, 3, 1, 4});
    auto scores = heads[0].matmul(heads[1].transpose(-1, -2)) / 2.0;
    scores = scores.masked_fill(allowed.logical_not(), -1e4);
    return out(torch::softmax(scores, -1).matmul(heads[2]).transpose(1, 2).flatten(2));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(OwnAttention);

/// Position t must tell the input of position t - 1, which a causal mask leaves visible.
struct CausalModelImpl : torch::nn::Module {
  CausalModelImpl() {
    embed = register_module("embed", torch::nn::Embedding(5, 8));
    positions = register_buffer("positions", torch::randn({6, 8}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    attention = register_module("attention", OwnAttention());
    head = register_module("head", torch::nn::Linear(8, 5));
  }
  Tensor forward(const Tensor& tokens) {
    const auto allowed = torch::ones({tokens.size(1), tokens.size(1)}, torch::kBool).tril();
    const auto x = embed(tokens) + positions;
    return head(torch::relu(x + attention(norm(x), allowed)));
  }
  torch::nn::Embedding embed{nullptr};
  Tensor positions;
  torch::nn::LayerNorm norm{nullptr};
  OwnAttention attention{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CausalModel);

TEST_F(AttentionPrograms, CausalLanguageModel) {
  expect_trains_as_without_amp([](auto& amp) {
    CausalModel model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.02));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto tokens = torch::randint(5, {16, 6});
    train(amp, opt, 40, [&] {
      const auto logits = net->forward(tokens);
      amp.output(logits);
      return torch::cross_entropy_loss(logits.slice(1, 1).flatten(0, 1), tokens.slice(1, 0, 5).flatten());
    });
  });
}

}  // namespace
}  // namespace apex::test::programs
