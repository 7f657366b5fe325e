// multi_tensor_unscale_l2norm and multi_tensor_maxnorm, and norms with every instruction set (K-L2, K-UL2).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

at::Tensor inv_scale(double value) { return at::full({1}, value, at::kFloat); }

class AllNorms : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AllNorms, HaveTheSameBitsUnderEveryIsa) {
  for (const int64_t offset : {0, 5}) {
    const Tensors in = random_list(GetParam(), offset);
    expect_same_everywhere([&] {
      const auto [l2, l2_each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
      const auto [unscaled, unscaled_each] = kernels::multi_tensor_unscale_l2norm(clear_flag(), in, inv_scale(0.3), true);
      const auto [max, max_each] = kernels::multi_tensor_maxnorm(clear_flag(), in, true);
      return Tensors{l2, l2_each, unscaled, unscaled_each, max, max_each};
    });
  }
}

// The products are those of multi_tensor_scale to float32, or float64.
TEST_P(AllNorms, UnscaleReturnsTheNormOfTheUnscaledTensors) {
  const Tensors in = random_list(GetParam());
  const Tensors before = copies_of(in);
  const Tensors unscaled = outputs_for(in, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  const double factor = static_cast<float>(1.0 / 3.0);
  kernels::multi_tensor_scale(clear_flag(), in, unscaled, factor);
  const at::Tensor flag = clear_flag();
  const auto [norm, norms] = kernels::multi_tensor_unscale_l2norm(flag, in, inv_scale(factor), true);
  const auto [expected, expected_each] = kernels::multi_tensor_l2norm(clear_flag(), unscaled, true);
  EXPECT_TRUE(same_bits(norm, expected));
  EXPECT_TRUE(same_bits(norms, expected_each));
  EXPECT_EQ(flag.item<int>(), 0);
  EXPECT_TRUE(same_bytes(in, before));
}

TEST_P(AllNorms, MaxIsTheLargestMagnitude) {
  const Tensors in = random_list(GetParam(), 3);
  const auto [norm, norms] = kernels::multi_tensor_maxnorm(clear_flag(), in, true);
  float largest = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const float expected = in[i].numel() == 0 ? 0.0f : in[i].to(at::kDouble).abs().max().to(at::kFloat).item<float>();
    EXPECT_EQ(norms[static_cast<int64_t>(i)].item<float>(), expected) << i;
    largest = std::max(largest, expected);
  }
  EXPECT_EQ(norm.item<float>(), largest);
  EXPECT_EQ(std::get<1>(kernels::multi_tensor_maxnorm(clear_flag(), in, false)).numel(), 0);
}

TEST_P(AllNorms, NonFiniteValuesSetTheFlagAndAffectTheNorm) {
  for (const auto isa : available_isas()) {
    const UseIsa use(isa);
    for (const double value : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      for (const int64_t place : {0, 15, 16, 511, 512, 529}) {
        const Tensors in = {at::ones({530}, GetParam()), at::ones({3}, GetParam())};
        in[0][place] = value;
        const at::Tensor max_flag = clear_flag();
        const auto [max, max_each] = kernels::multi_tensor_maxnorm(max_flag, in, true);
        EXPECT_EQ(max_flag.item<int>(), 1);
        EXPECT_EQ(std::isnan(max.item<float>()), std::isnan(value)) << place;
        EXPECT_EQ(std::isinf(max_each[0].item<float>()), std::isinf(value)) << place;
        EXPECT_EQ(max_each[1].item<float>(), 1.0f);
        const at::Tensor flag = clear_flag();
        kernels::multi_tensor_unscale_l2norm(flag, in, inv_scale(0.5), false);
        EXPECT_EQ(flag.item<int>(), 1);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AllNorms, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

TEST(NormsOf, OfNothingAreZero) {
  const at::Tensor flag = clear_flag();
  EXPECT_EQ(std::get<0>(kernels::multi_tensor_maxnorm(flag, {}, true)).item<float>(), 0);
  EXPECT_EQ(std::get<0>(kernels::multi_tensor_unscale_l2norm(flag, {}, inv_scale(2), true)).item<float>(), 0);
  EXPECT_EQ(flag.item<int>(), 0);
}

TEST(NormsOf, AnOverflowThatUnscalingCreatesIsReported) {
  const Tensors in = {at::full({40}, 1e30f)};
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_unscale_l2norm(flag, in, inv_scale(1e30), false);
  EXPECT_EQ(flag.item<int>(), 1);
}

TEST(NormsOf, RequireAFloatInvScaleOfOneElement) {
  const Tensors in = {at::ones({4})};
  expect_error([&] { kernels::multi_tensor_unscale_l2norm(clear_flag(), in, at::Tensor(), false); }, {"inv_scale", "Float"});
  expect_error([&] { kernels::multi_tensor_unscale_l2norm(clear_flag(), in, at::ones({2}), false); }, {"inv_scale", "[2]"});
  expect_error([&] { kernels::multi_tensor_unscale(clear_flag(), in, in, at::ones({2})); },
               {"multi_tensor_unscale: inv_scale", "[2]"});
  expect_error([&] { kernels::multi_tensor_unscale_l2norm(clear_flag(), in, at::ones({1}, at::kHalf), false); },
               {"inv_scale", "Half"});
}

}  // namespace
}  // namespace kernels_test
