// Attention with a key_padding_mask at every level: LibTorch's own code fills 16-bit scores with nothing but an error.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr int64_t kTime = 5, kBatch = 3, kWidth = 8;

/// Two encoder layers over [kTime, kBatch, kWidth]; the last two steps of the first sequence are padding.
struct MaskedEncoderImpl : torch::nn::Module {
  MaskedEncoderImpl() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(kWidth, 2).dim_feedforward(16).dropout(0.0);
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
  }
  Tensor forward(Tensor x, Tensor mask) { return encoder(x, /*src_mask=*/Tensor(), mask); }
  torch::nn::TransformerEncoder encoder{nullptr};
};
TORCH_MODULE(MaskedEncoder);

struct MaskedAttention : AmpTest, ::testing::WithParamInterface<const char*> {
  static Tensor mask() {
    Tensor mask = torch::zeros({kBatch, kTime}, torch::kBool);
    mask.index_put_({0, torch::indexing::Slice(kTime - 2)}, true);
    return mask;
  }
  static Tensor input() {
    auto generator = at::detail::createCPUGenerator(7);
    return torch::randn({kTime, kBatch, kWidth}, generator);
  }
};

TEST_P(MaskedAttention, TrainsNearFloat32) {
  const auto run = [](const char* level) {
    torch::manual_seed(11);
    MaskedEncoder model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    const Tensor output = net->forward(input(), mask()).to(torch::kFloat);
    {
      auto scaled = amp::scale_loss(output.square().mean(), opt);
      scaled.backward();
    }
    opt.step();
    EXPECT_FALSE(amp::step_result(opt).skipped) << level;
    amp::reset();
    return output.detach();
  };
  // Some thirty roundings to BF16 of values near 1, each off by 2^-9 of the value: true to about 30 * 2^-9 = 2^-4.
  EXPECT_TRUE(torch::allclose(run(GetParam()), run("O0"), 0, 1.0 / 16));
}

TEST_P(MaskedAttention, PaddingReachesNoOtherStep) {
  MaskedEncoder model;
  auto net = amp::initialize(model, GetParam(), quiet());
  Tensor changed = input();
  changed.index_put_({torch::indexing::Slice(kTime - 2), 0}, 100.0);
  const auto kept = [](const Tensor& output) { return output.slice(0, 0, kTime - 2).select(1, 0); };
  EXPECT_TRUE(torch::equal(kept(net->forward(input(), mask())), kept(net->forward(changed, mask()))));
  EXPECT_TRUE(torch::equal(kept(model->forward(input(), mask())), kept(model->forward(changed, mask())))) << "the original";
}

TEST_P(MaskedAttention, AMaskThatHidesNothingChangesNothing) {
  torch::nn::MultiheadAttention model(torch::nn::MultiheadAttentionOptions(kWidth, 2));
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor x = input(), nothing = torch::zeros({kBatch, kTime}, torch::kBool);
  const auto masked = net->forward(x, x, x, nothing), plain = net->forward(x, x, x);
  EXPECT_TRUE(torch::equal(std::get<0>(masked), std::get<0>(plain)));
  EXPECT_TRUE(torch::equal(std::get<1>(masked), std::get<1>(plain)));
}

INSTANTIATE_TEST_SUITE_P(Levels, MaskedAttention, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5"),
                         [](const auto& test) { return test.param; });

// A product of 16-bit tensors that lie otherwise stays in 16 bits.
TEST_F(AmpTest, ScoresOfOnesOwnAttentionStay16Bit) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor q = torch::randn({4, 5, 6});
  EXPECT_EQ(torch::bmm(q, q.transpose(1, 2)).dtype(), torch::kHalf);
}

}  // namespace
}  // namespace apex::test
