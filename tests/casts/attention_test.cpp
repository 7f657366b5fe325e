// Attention with a key_padding_mask at every level. Without amp's help LibTorch raises an error when it masks 16-bit scores.
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
  // Some thirty roundings to BF16 of values near 1, each off by 2^-9 on average: true to about 30 * 2^-9 = 2^-4.
  EXPECT_TRUE(torch::allclose(run(GetParam()), run("O0"), 0, 1.0 / 16));
}

TEST_P(MaskedAttention, PaddingDoesNotChangeOtherSteps) {
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

// The layer appends to its keys; the result has the strides that LibTorch's `cat` gives it.
TEST_P(MaskedAttention, AcceptsAddBiasKvAndAddZeroAttn) {
  for (const bool grad : {true, false}) {
    const torch::AutoGradMode mode(grad);
    torch::manual_seed(11);
    const auto options = torch::nn::MultiheadAttentionOptions(kWidth, 2).add_bias_kv(true).add_zero_attn(true);
    torch::nn::MultiheadAttention model(options);
    const Tensor x = input(), want = std::get<0>(model->forward(x, x, x, mask()));
    auto net = amp::initialize(model, GetParam(), quiet());
    // Some ten roundings to BF16 of values near 1, each off by 2^-9 on average.
    for (const Tensor& output : {std::get<0>(net->forward(x, x, x, mask())), std::get<0>(model->forward(x, x, x, mask()))}) {
      EXPECT_TRUE(torch::allclose(output.to(torch::kFloat), want, 0, 1.0 / 32)) << grad;
    }
    amp::reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, MaskedAttention, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

// A product of 16-bit tensors with other strides stays in 16 bits.
TEST_F(AmpTest, ScoresOfACustomAttentionStay16Bit) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor q = torch::randn({4, 5, 6});
  EXPECT_EQ(torch::bmm(q, q.transpose(1, 2)).dtype(), torch::kHalf);
}

// Only the first factor has the strides of attention heads, as in products with time-major tensors or recurrent outputs.
TEST_F(AmpTest, ProductsOfTimeMajorTensorsWithOthersStay16Bit) {
  for (const char* level : {"O1", "O2"}) {
    Mlp model;
    auto net = amp::initialize(model, level, quiet());
    const Tensor q = torch::randn({6, 8, 16}).to(torch::kHalf).transpose(0, 1);
    const Tensor k = torch::randn({8, 6, 16}).to(torch::kHalf), column = torch::randn({8, 16}).to(torch::kHalf).unsqueeze(2);
    EXPECT_EQ(torch::bmm(q, k.transpose(1, 2)).dtype(), torch::kHalf) << level;
    EXPECT_EQ(torch::bmm(q, column).dtype(), torch::kHalf) << level;
    amp::reset();
  }
}

TEST_F(AmpTest, ScoresStay16BitWithoutCasts) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor heads = torch::randn({6, 8, 16}).to(torch::kHalf).transpose(0, 1);
  ASSERT_EQ(torch::bmm(heads, heads.transpose(1, 2)).dtype(), torch::kFloat)
      << "queries and keys as LibTorch's attention has them";
  const amp::disable_casts off;
  EXPECT_EQ(torch::bmm(heads, heads.transpose(1, 2)).dtype(), torch::kHalf);
}

/// A custom attention: queries and keys, or only the queries, have the strides of LibTorch's heads; the values are contiguous.
struct OwnAttentionImpl : torch::nn::Module {
  explicit OwnAttentionImpl(bool keys_too) : keys_as_heads(keys_too) {
    in = register_module("in", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, 1));
  }
  Tensor forward(const Tensor& x) {
    const auto parts = in(x).chunk(3, 2);
    const Tensor q = parts[0].contiguous().transpose(0, 1), k = parts[1].contiguous().transpose(0, 1);
    const Tensor v = parts[2].transpose(0, 1).contiguous();
    const Tensor scores = torch::matmul(q, (keys_as_heads ? k : k.contiguous()).transpose(1, 2));
    return out(torch::matmul(torch::softmax(scores, -1), v));
  }
  bool keys_as_heads;
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(OwnAttention);

TEST_P(MaskedAttention, ACustomAttentionRunsThroughTheOriginalModel) {
  for (const bool keys_as_heads : {false, true}) {
    for (const bool grad : {true, false}) {
      const torch::AutoGradMode mode(grad);
      torch::manual_seed(11);
      OwnAttention model(keys_as_heads);
      const Tensor want = model->forward(input());
      // Some ten roundings to BF16 of values near 1, each off by 2^-8 at most.
      auto net = amp::initialize(model, GetParam(), quiet());
      for (const Tensor& output : {net->forward(input()), model->forward(input())}) {
        EXPECT_TRUE(torch::allclose(output.to(torch::kFloat), want, 0, 1.0 / 16)) << keys_as_heads << grad;
      }
      amp::reset();
    }
  }
}

// Nested tensors have no strides, and LibTorch cannot convert transposed ones. So these have the level's dtype already.
TEST_P(MaskedAttention, NestedTensorsAreMultipliedAsWithoutAmp) {
  torch::nn::Linear model(2, 2);
  auto net = amp::initialize(model, GetParam(), quiet());
  const auto dtype = GetParam()[1] < '4' ? torch::kHalf : torch::kBFloat16;
  const Tensor nested = at::_nested_tensor_from_tensor_list({torch::ones({2, 4}), torch::ones({3, 4})}).to(dtype);
  EXPECT_TRUE(at::bmm(nested, nested.transpose(1, 2)).unbind()[1].to(torch::kFloat).equal(torch::full({3, 3}, 4.0)));
}

}  // namespace
}  // namespace apex::test
