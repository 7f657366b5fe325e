// amp::functional: functions that Apex casts as a whole and LibTorch composes of several operators.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

namespace F = torch::nn::functional;

struct Functional : AmpTest {
  Mlp model;
  // Expects `f` of 16-bit input at O1 and O4 to equal `f` of float input without amp, bit for bit.
  template <class Function>
  void expect_float32(const Tensor& input, Function&& f) {
    for (const auto& [level, type] : {std::pair("O1", torch::kHalf), std::pair("O4", torch::kBFloat16)}) {
      const Tensor low = input.to(type), want = f(low.to(torch::kFloat));
      EXPECT_EQ(f(low).dtype(), type) << level << ": without amp it is LibTorch's own";
      auto net = amp::initialize(model, level, quiet());
      const Tensor got = f(low);
      amp::reset();
      EXPECT_EQ(got.dtype(), torch::kFloat) << level;
      EXPECT_TRUE(torch::equal(got, want)) << level;
    }
  }
};

TEST_F(Functional, LocalResponseNormDoesNotSquareInHalf) {
  expect_float32(300 * torch::rand({2, 5, 3}) + 300,
                 [](const Tensor& x) { return amp::functional::local_response_norm(x, F::LocalResponseNormFuncOptions(3)); });
}

TEST_F(Functional, MultilabelSoftMarginLossRunsInFloat32) {
  const Tensor target = torch::randint(2, {4, 3});
  expect_float32(20 * torch::randn({4, 3}),
                 [&](const Tensor& x) { return amp::functional::multilabel_soft_margin_loss(x, target.to(x.dtype())); });
}

TEST_F(Functional, InterpolateRunsInFloat32InEveryMode) {
  const Tensor image = torch::rand({1, 2, 4, 4});
  for (const F::InterpolateFuncOptions::mode_t& mode :
       {F::InterpolateFuncOptions::mode_t(torch::kArea), F::InterpolateFuncOptions::mode_t(torch::kNearest),
        F::InterpolateFuncOptions::mode_t(torch::kBilinear), F::InterpolateFuncOptions::mode_t(torch::kBicubic)}) {
    const auto options = F::InterpolateFuncOptions().size(std::vector<int64_t>{3, 3}).mode(mode);
    expect_float32(image, [&](const Tensor& x) { return amp::functional::interpolate(x, options); });
  }
}

TEST_F(Functional, NormalizeAndSoftminRunInFloat32) {
  expect_float32(torch::rand({3, 4}), [](const Tensor& x) { return amp::functional::normalize(x); });
  expect_float32(torch::rand({3, 4}), [](const Tensor& x) { return amp::functional::softmin(x, F::SoftminFuncOptions(1)); });
}

TEST_F(Functional, CpuCastsToFloat) {
  EXPECT_EQ(amp::cpu(torch::ones({2}, torch::kDouble)).dtype(), torch::kDouble);
  auto net = amp::initialize(model, "O1", quiet());
  EXPECT_EQ(amp::cpu(torch::ones({2}).to(torch::kHalf)).dtype(), torch::kFloat);
  EXPECT_EQ(amp::cpu(torch::ones({2}, torch::kDouble)).dtype(), torch::kFloat);
  EXPECT_EQ(amp::cpu(torch::ones({2}, torch::kLong)).dtype(), torch::kLong);
}

}  // namespace
}  // namespace apex::test
