// NORM-06, and the modules under amp::initialize: dtypes at every level, and training.
#include <apex_cpp/amp.h>

#include <thread>

#include "tests/amp/support.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

namespace amp = apex::amp;
namespace norm = apex::normalization;

// A linear layer before and after each kind of normalization.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc1", fc1), register_module("layer", layer), register_module("rms", rms);
    register_module("mixed", mixed), register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = fc1(x);
    into_layer = h.scalar_type();
    h = layer(h);
    out_of_layer = h.scalar_type();
    h = rms(torch::relu(h));
    out_of_rms = h.scalar_type();
    h = mixed(fc1(h));
    out_of_mixed = h.scalar_type();
    return fc2(h);
  }
  torch::nn::Linear fc1{8, 8}, fc2{8, 3};
  norm::FusedLayerNorm layer{norm::FusedLayerNormOptions(8)};
  norm::FusedRMSNorm rms{norm::FusedRMSNormOptions({8}).memory_efficient(true)};
  norm::MixedFusedLayerNorm mixed{8};
  at::ScalarType into_layer{}, out_of_layer{}, out_of_rms{}, out_of_mixed{};
};
TORCH_MODULE(Net);

struct Level {
  const char* name;
  at::ScalarType low, normalized;  // the result dtypes of linear layers and of normalizations
};

class NormLevels : public apex::test::AmpTest, public ::testing::WithParamInterface<Level> {};

TEST_P(NormLevels, Norm06DtypesAndTraining) {
  Net model;
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam().name, apex::test::quiet());
  const Tensor x = torch::randn({16, 8}), target = torch::randint(3, {16});
  double first = 0, last = 0;
  for (int i = 0; i < 30; ++i) {
    opt.zero_grad();
    const Tensor loss = torch::cross_entropy_loss(net->forward(x), target);
    {
      auto scaled = amp::scale_loss(loss, opt);
      scaled.backward();
    }
    opt.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.8 * first);
  const auto& seen = *net;
  EXPECT_EQ(seen.into_layer, GetParam().low);
  EXPECT_EQ(seen.out_of_layer, GetParam().normalized);
  EXPECT_EQ(seen.out_of_rms, GetParam().normalized);
  EXPECT_EQ(seen.out_of_mixed, model->mixed->weight.scalar_type()) << "NORM-04";
}

INSTANTIATE_TEST_SUITE_P(All, NormLevels,
                         ::testing::Values(Level{"O0", at::kFloat, at::kFloat}, Level{"O1", at::kHalf, at::kFloat},
                                           Level{"O2", at::kHalf, at::kHalf}, Level{"O3", at::kHalf, at::kHalf},
                                           Level{"O4", at::kBFloat16, at::kFloat}, Level{"O5", at::kBFloat16, at::kBFloat16},
                                           Level{"O6", at::kBFloat16, at::kBFloat16}),
                         [](const auto& test) { return test.param.name; });

class NormCasts : public apex::test::AmpTest {};

TEST_F(NormCasts, AtO1TheGradientHasTheInputsDtype) {
  Net model;
  auto net = amp::initialize(model, "O1", apex::test::quiet());
  const Tensor x = torch::randn({4, 8}).to(at::kHalf).requires_grad_();
  const Tensor y = model->layer(x);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kHalf);
  const amp::disable_casts off;
  EXPECT_THROW(model->layer(x), c10::Error) << "half input, float weight, and no casts";
}

// On another thread torch::layer_norm is not cast either.
TEST_F(NormCasts, AThreadWithoutCastsKeepsTheInputsDtype) {
  Net model;
  auto net = amp::initialize(model, "O1", apex::test::quiet());
  const Tensor x = torch::randn({4, 8}).to(at::kHalf);
  const auto type = [&] { return norm::fused_rms_norm(x, {8}).scalar_type(); };
  at::ScalarType there{};
  std::thread([&] { there = type(); }).join();
  EXPECT_EQ(there, at::kHalf);
  EXPECT_EQ(type(), at::kFloat);
}

TEST_F(NormCasts, AtO2FloatInputIsCastToTheWeightsDtype) {
  Net model;
  auto net = amp::initialize(model, "O2", apex::test::quiet());
  EXPECT_EQ(model->layer(torch::randn({4, 8})).scalar_type(), at::kHalf);
  EXPECT_EQ(model->rms(torch::randn({4, 8})).scalar_type(), at::kHalf);
}

// Both kinds, mixed or not: autocast casts all arguments, including the weight.
TEST_F(NormCasts, Norm06TorchsAutocastCastsTheArguments) {
  const Tensor x = torch::randn({4, 8}), w = torch::rand({8}) + 0.5, b = torch::randn({8});
  const auto low = [](const Tensor& tensor) { return tensor.to(at::kBFloat16); };
  const Tensor expected = norm::fused_layer_norm_affine(low(x), low(w), low(b), {8});
  const Tensor rms = norm::fused_rms_norm(low(x), {8});
  const Tensor in_double = norm::fused_rms_norm(x.to(at::kDouble), {8});
  const amp::autocast guard("cpu");
  EXPECT_TRUE(same_bits(norm::fused_layer_norm_affine(x, w, b, {8}), expected));
  EXPECT_TRUE(same_bits(norm::mixed_dtype_fused_layer_norm_affine(x, w, b, {8}), expected));
  EXPECT_TRUE(same_bits(norm::fused_rms_norm(x, {8}), rms));
  EXPECT_TRUE(same_bits(norm::fused_rms_norm(x.to(at::kDouble), {8}), in_double)) << "float64 stays";
  const Tensor leaf = x.clone().requires_grad_();
  norm::fused_rms_norm(leaf, {8}).sum().backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace normalization_test
