#include "support.h"

namespace {

using namespace amp_C_test;

class Norms : public testing::TestWithParam<at::ScalarType> {
 protected:
  static double norm_of(const Tensors& list, double factor = 1.0) {
    double sum = 0;
    for (const at::Tensor& tensor : list) sum += (tensor.to(at::kDouble) * factor).square().sum().item<double>();
    return std::sqrt(sum);
  }

  // Within 2.5 roundings of 2^-24 of the exact norm (kernels/multi_tensor.h); a factor rounds each value once more.
  static constexpr double kBound = 4 * 0x1p-24;

  static void expect_norms(const std::tuple<at::Tensor, at::Tensor>& norms, const Tensors& list, double factor = 1.0) {
    const auto& [total, each] = norms;
    ASSERT_EQ(total.sizes(), at::IntArrayRef({1}));
    EXPECT_EQ(total.scalar_type(), at::kFloat);
    EXPECT_NEAR(total.item<double>(), norm_of(list, factor), kBound * norm_of(list, factor));
    ASSERT_EQ(each.sizes(), at::IntArrayRef({static_cast<int64_t>(list.size())}));
    for (size_t i = 0; i < list.size(); ++i) {
      const double expected = norm_of({list[i]}, factor);
      EXPECT_NEAR(each[static_cast<int64_t>(i)].item<double>(), expected, kBound * expected) << i;
    }
  }
};

// K-L2
TEST_P(Norms, L2NormOfAllAndOfEach) {
  const Tensors in = random_list(GetParam());
  const at::Tensor noop = flag();
  expect_norms(multi_tensor_l2norm_cuda(kChunk, noop, {in}, true), in);
  EXPECT_EQ(noop.item<int>(), 0);
}

// K-L2MP
TEST_P(Norms, L2NormMpOfAllAndOfEach) {
  const Tensors in = random_list(GetParam());
  expect_norms(multi_tensor_l2norm_mp_cuda(kChunk, flag(), {in}, true), in);
}

// K-L2S: the norm is that of the input, also where the output takes its place.
TEST_P(Norms, L2NormScaleScalesAndReturnsTheInputsNorm) {
  const Tensors in = random_list(GetParam());
  const Tensors out = zeros_list(at::kFloat);
  expect_norms(multi_tensor_l2norm_scale_cuda(kChunk, flag(), {in, out}, 0.5f, true), in);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(at::equal(out[i], in[i].to(at::kFloat) * 0.5)) << i;

  const Tensors list = clones(in);
  expect_norms(multi_tensor_l2norm_scale_cuda(kChunk, flag(), {list, list}, 0.5f, true), in);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(at::equal(list[i], in[i] * 0.5)) << i;
}

// K-UL2
TEST_P(Norms, UnscaleL2NormReturnsTheProductsNormAndKeepsTheInput) {
  const Tensors in = random_list(GetParam());
  const Tensors before = clones(in);
  expect_norms(multi_tensor_unscale_l2norm_cuda(kChunk, flag(), {in}, scalar(0.125), true), in, 0.125);
  expect_equal(in, before);
}

INSTANTIATE_TEST_SUITE_P(, Norms, testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& test) { return std::string(toString(test.param)); });

TEST(NormResults, PerTensorNormsAreEmptyUnlessRequested) {
  const Tensors in = {at::ones({4})};
  EXPECT_EQ(std::get<1>(multi_tensor_l2norm_cuda(kChunk, flag(), {in}, std::nullopt)).numel(), 0);
  EXPECT_EQ(std::get<1>(multi_tensor_l2norm_cuda(kChunk, flag(), {in}, false)).numel(), 0);
  EXPECT_EQ(std::get<1>(multi_tensor_l2norm_mp_cuda(kChunk, flag(), {in}, std::nullopt)).numel(), 0);
  EXPECT_EQ(std::get<1>(multi_tensor_unscale_l2norm_cuda(kChunk, flag(), {in}, scalar(1), std::nullopt)).numel(), 0);
}

// K-L2MP: Apex leaves the results uninitialised after a flag.
TEST(NormResults, L2NormMpReturnsTheNormWithAndWithoutTheFlag) {
  const auto [norm, each] = multi_tensor_l2norm_mp_cuda(kChunk, flag(1), {{at::full({4}, 3.0)}}, true);
  EXPECT_EQ(norm.item<double>(), 6.0);
  EXPECT_EQ(each[0].item<double>(), 6.0);
}

}  // namespace
