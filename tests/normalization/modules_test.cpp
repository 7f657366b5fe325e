// NORM-01, NORM-04, NORM-05: the modules, and the tensors that autograd saves for them.
#include <sstream>

#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

namespace norm = apex::normalization;

TEST(NormModules, Norm01DefaultsAreApexs) {
  norm::FusedLayerNorm layer(6);
  EXPECT_EQ(layer->options.eps(), 1e-5);
  EXPECT_TRUE(layer->options.elementwise_affine());
  EXPECT_FALSE(layer->options.memory_efficient());
  EXPECT_TRUE(torch::equal(layer->weight, torch::ones({6})));
  EXPECT_TRUE(torch::equal(layer->bias, torch::zeros({6})));
  EXPECT_EQ(layer->named_parameters().keys(), (std::vector<std::string>{"weight", "bias"}));
  norm::FusedRMSNorm rms(norm::FusedRMSNormOptions({3, 2}));
  EXPECT_EQ(rms->named_parameters().keys(), (std::vector<std::string>{"weight"}));
  EXPECT_EQ(rms->weight.sizes(), (std::vector<int64_t>{3, 2}));
}

TEST(NormModules, WithoutAffineThereAreNoParameters) {
  norm::FusedLayerNorm layer(norm::FusedLayerNormOptions({6}).elementwise_affine(false));
  EXPECT_TRUE(layer->parameters().empty());
  const Tensor x = torch::randn({4, 6});
  EXPECT_TRUE(torch::equal(layer(x), norm::fused_layer_norm(x, {6}, 1e-5)));
  norm::FusedRMSNorm rms(norm::FusedRMSNormOptions({6}).elementwise_affine(false));
  EXPECT_TRUE(torch::equal(rms(x), norm::fused_rms_norm(x, {6}, 1e-5)));
}

TEST(NormModules, ResetParametersUndoesTraining) {
  norm::MixedFusedLayerNorm layer(6);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.fill_(3), layer->bias.fill_(3);
  }
  layer->reset_parameters();
  EXPECT_TRUE(torch::equal(layer->weight, torch::ones({6})));
  EXPECT_TRUE(torch::equal(layer->bias, torch::zeros({6})));
}

TEST(NormModules, PrintTheirOptions) {
  std::ostringstream text;
  text << norm::FusedLayerNorm(norm::FusedLayerNormOptions({3, 2}).eps(0.5)) << norm::MixedFusedRMSNorm(4);
  EXPECT_EQ(text.str(),
            "apex::normalization::FusedLayerNorm([3, 2], eps=0.5, elementwise_affine=true)"
            "apex::normalization::MixedFusedRMSNorm([4], eps=1e-05, elementwise_affine=true)");
}

// The modules in every form in which programs hold them.
template <class Holder>
class EachModule : public ::testing::Test {};
using Holders = ::testing::Types<norm::FusedLayerNorm, norm::FusedRMSNorm, norm::MixedFusedLayerNorm, norm::MixedFusedRMSNorm>;
TYPED_TEST_SUITE(EachModule, Holders);

TYPED_TEST(EachModule, SavesAndLoads) {
  TypeParam saved(6), loaded(6);
  {
    const torch::NoGradGuard no_grad;
    saved->weight.copy_(torch::randn({6}));
  }
  std::stringstream stream;
  torch::save(saved, stream);
  torch::load(loaded, stream);
  EXPECT_TRUE(torch::equal(loaded->weight, saved->weight));
}

TYPED_TEST(EachModule, ClonesDeeplyAndWorksInASequential) {
  TypeParam original(6);
  const auto copy = std::dynamic_pointer_cast<typename TypeParam::ContainedType>(original->clone());
  ASSERT_TRUE(copy);
  {
    const torch::NoGradGuard no_grad;
    copy->weight.fill_(2);
  }
  EXPECT_TRUE(torch::equal(original->weight, torch::ones({6})));
  torch::nn::Sequential net(torch::nn::Linear(4, 6), original);
  EXPECT_EQ(net->forward(torch::randn({3, 4})).sizes(), (std::vector<int64_t>{3, 6}));
}

TYPED_TEST(EachModule, MovesToSixteenBits) {
  TypeParam module(6);
  module->to(torch::kBFloat16);
  const Tensor y = module(torch::randn({3, 6}).to(torch::kBFloat16));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

TYPED_TEST(EachModule, TrainsTheSameWithMemoryEfficient) {
  const auto grad = [](bool memory_efficient) {
    torch::manual_seed(3);
    TypeParam module(decltype(TypeParam(6)->options)(6).memory_efficient(memory_efficient));
    const Tensor x = torch::randn({5, 6}).requires_grad_();
    module(x).square().sum().backward();
    return x.grad();
  };
  // The output is of order 1 and has the only additional error: one rounding, which enters sums of 6 terms.
  EXPECT_TRUE(torch::allclose(grad(true), grad(false), 0, 200 * 0x1p-24));
}

TEST(NormModules, Norm04MixedOutputFollowsTheWeight) {
  norm::MixedFusedLayerNorm layer(6);
  norm::MixedFusedRMSNorm rms(6);
  const Tensor x = torch::randn({3, 6});
  EXPECT_EQ(layer(x.to(at::kHalf)).scalar_type(), at::kFloat);
  layer->to(torch::kHalf), rms->to(torch::kBFloat16);
  EXPECT_EQ(layer(x).scalar_type(), at::kHalf);
  EXPECT_EQ(rms(x).scalar_type(), at::kBFloat16);
}

// NORM-05: true if the input outlives the forward pass when only autograd could hold it.
bool input_is_kept(Kind kind, bool memory_efficient) {
  const Tensor leaf = torch::randn({4, 6}).requires_grad_();
  Tensor input = leaf * 2;  // multiplication saves neither operand
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(input.storage().getWeakStorageImpl());
  const Tensor output = kind == Kind::layer ? norm::fused_layer_norm(input, {6}, 1e-5, memory_efficient)
                                            : norm::fused_rms_norm(input, {6}, 1e-5, memory_efficient);
  input.reset();
  return !memory.expired();
}

TEST(NormModules, Norm05MemoryEfficientReleasesTheInput) {
  for (const Kind kind : {Kind::layer, Kind::rms}) {
    EXPECT_TRUE(input_is_kept(kind, false));
    EXPECT_FALSE(input_is_kept(kind, true));
  }
}

// Autograd notices what would make its gradients wrong.
TEST(NormModules, Norm05ChangingSavedTensorsIsAnError) {
  const auto backward_after = [](bool memory_efficient, bool change_output) {
    const Tensor leaf = torch::randn({4, 6}).requires_grad_();
    Tensor input = leaf * 2;
    Tensor output = norm::fused_layer_norm(input, {6}, 1e-5, memory_efficient);
    (change_output ? output : input).detach().mul_(2);
    output.sum().backward();
  };
  EXPECT_THROW(backward_after(false, false), c10::Error);
  EXPECT_THROW(backward_after(true, true), c10::Error);
  EXPECT_NO_THROW(backward_after(false, true));
  EXPECT_NO_THROW(backward_after(true, false));
}

}  // namespace
}  // namespace normalization_test
