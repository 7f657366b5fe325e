// multi_tensor_scale, multi_tensor_axpby and multi_tensor_copy over every dtype mix, boundary size and misalignment, compared
// bit for bit (K-SCALE, K-AXPBY, BUG-22).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using Mix = std::tuple<at::ScalarType, at::ScalarType>;
using kernels::CheckArg;

constexpr double kFactor = 0.37;

class TwoLists : public ::testing::TestWithParam<Mix> {};

TEST_P(TwoLists, ScaleGivesTheRoundedProduct) {
  const auto [in_dtype, out_dtype] = GetParam();
  for (const int64_t offset : {0, 1, 3}) {
    const Tensors in = random_list(in_dtype, offset);
    const Tensors out = outputs_for(in, out_dtype, 2 * offset);
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_scale(flag, in, out, kFactor);
    for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(same_bits(out[i], expected_scale(in[i], kFactor, out_dtype))) << i;
    EXPECT_EQ(flag.item<int>(), 0);
  }
}

TEST_P(TwoLists, CopyRoundsToNearest) {
  const auto [from_dtype, to_dtype] = GetParam();
  for (const int64_t offset : {0, 1, 5}) {
    const Tensors from = random_list(from_dtype, offset);
    const Tensors to = outputs_for(from, to_dtype, 3 * offset);
    kernels::multi_tensor_copy(from, to);
    for (size_t i = 0; i < from.size(); ++i) EXPECT_TRUE(same_bits(to[i], stored_as(from[i], to_dtype))) << i;
  }
}

TEST_P(TwoLists, CopyKeepsInfNaNAndSignedZero) {
  const auto [from_dtype, to_dtype] = GetParam();
  const Tensors from = {at::tensor({INFINITY, -INFINITY, NAN, -0.0f, 0.0f, 1e-7f, 65504.0f}).to(from_dtype)};
  const Tensors to = outputs_for(from, to_dtype);
  kernels::multi_tensor_copy(from, to);
  EXPECT_TRUE(same_bits(to[0], from[0].to(to_dtype)));
}

TEST_P(TwoLists, NothingOutsideTheOutputsIsWritten) {
  const auto [in_dtype, out_dtype] = GetParam();
  for (const int64_t size : boundary_sizes()) {
    const Tensors in = {random_values(size, in_dtype)};
    const at::Tensor memory = at::full({size + 64}, 7, out_dtype);
    kernels::multi_tensor_scale(clear_flag(), in, Tensors{memory.narrow(0, 32, size)}, kFactor);
    kernels::multi_tensor_copy(in, Tensors{memory.narrow(0, 32, size)});
    EXPECT_TRUE(memory.narrow(0, 0, 32).eq(7).all().item<bool>()) << size;
    EXPECT_TRUE(memory.narrow(0, 32 + size, 32).eq(7).all().item<bool>()) << size;
  }
}

TEST_P(TwoLists, UnscaleMultipliesByTheTensorsValue) {
  const auto [in_dtype, out_dtype] = GetParam();
  const Tensors in = random_list(in_dtype);
  const at::Tensor inv_scale = at::full({1}, kFactor, at::kFloat);
  const Tensors out = outputs_for(in, out_dtype);
  kernels::multi_tensor_unscale(clear_flag(), in, out, inv_scale);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(same_bits(out[i], expected_scale(in[i], inv_scale.item<double>(), out_dtype))) << i;
  }
}

TEST_P(TwoLists, ScaleHasTheSameBitsAtAnyNumberOfThreads) {
  const auto [in_dtype, out_dtype] = GetParam();
  const Tensors in = random_list(in_dtype);
  std::vector<Tensors> results;
  for (const int count : {1, 2, 4}) {
    const Threads threads(count);
    results.push_back(outputs_for(in, out_dtype));
    kernels::multi_tensor_scale(clear_flag(), in, results.back(), kFactor);
  }
  EXPECT_TRUE(same_bits(results[1], results[0]));
  EXPECT_TRUE(same_bits(results[2], results[0]));
}

TEST_P(TwoLists, AxpbyGivesUnfusedProductsAndSumInEveryOutputDtype) {
  const auto [x_dtype, y_dtype] = GetParam();
  for (const int64_t offset : {0, 3}) {
    const Tensors x = random_list(x_dtype, offset);
    const Tensors y = random_list(y_dtype, offset + 1);
    for (const at::ScalarType out_dtype : dtypes()) {
      const Tensors out = outputs_for(x, out_dtype, offset + 2);
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_axpby(flag, x, y, out, 0.75, -1.3, CheckArg::both);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(same_bits(out[i], expected_axpby(x[i], y[i], 0.75, -1.3, out_dtype))) << out_dtype << ' ' << i;
      }
      EXPECT_EQ(flag.item<int>(), 0);
    }
  }
}

class SixteenBits : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // All bit patterns: zeros, subnormals, normals, Inf and NaN.
  at::Tensor every_value() const { return at::arange(65536, at::kInt).to(at::kShort).view(GetParam()); }
};

TEST_P(SixteenBits, EveryValueIsRead) {
  const Tensors from = {every_value()};
  const Tensors to = outputs_for(from, at::kFloat);
  kernels::multi_tensor_copy(from, to);
  EXPECT_TRUE(same_bits(to[0], from[0].to(at::kFloat)));
}

TEST_P(SixteenBits, FloatsAtAndNextToEveryTieRoundToNearestEven) {
  const int half_step = GetParam() == at::kHalf ? 0x1000 : 0x8000;
  const at::Tensor bits = every_value().to(at::kFloat).view(at::kInt);
  for (const int step : {0, half_step - 1, half_step, half_step + 1}) {
    const Tensors from = {bits.add(step).view(at::kFloat)};
    const Tensors to = outputs_for(from, GetParam());
    kernels::multi_tensor_copy(from, to);
    EXPECT_TRUE(same_bits(to[0], from[0].to(GetParam()))) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBits, ::testing::Values(at::kHalf, at::kBFloat16), param_name<at::ScalarType>);

INSTANTIATE_TEST_SUITE_P(Mixes, TwoLists, ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::ValuesIn(dtypes())),
                         param_name<Mix>);

TEST(Axpby, HasTheSameBitsAtAnyNumberOfThreads) {
  const Tensors x = random_list(at::kHalf);
  const Tensors y = random_list(at::kFloat);
  std::vector<Tensors> results;
  for (const int count : {1, 2, 4}) {
    const Threads threads(count);
    results.push_back(outputs_for(x, at::kFloat));
    kernels::multi_tensor_axpby(clear_flag(), x, y, results.back(), 0.1, 1.0, CheckArg::x);
  }
  EXPECT_TRUE(same_bits(results[1], results[0]));
  EXPECT_TRUE(same_bits(results[2], results[0]));
}

TEST(Axpby, DoesNotFuseProductAndSum) {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24. Rounding the product drops the last term; a fused multiply-add would keep it.
  const float value = 1.0f + 0x1p-12f;
  const Tensors x = {at::full({600}, value)};
  const Tensors y = {at::full({600}, 1.0f)};
  const Tensors out = outputs_for(x, at::kFloat);
  kernels::multi_tensor_axpby(clear_flag(), x, y, out, value, -(1.0 + 0x1p-11), CheckArg::both);
  EXPECT_TRUE(out[0].eq(0).all().item<bool>());
}

TEST(Scale, RoundsTheFactorToFloat32) {
  const Tensors in = {at::full({3}, 1.0f)};
  const Tensors out = outputs_for(in, at::kFloat);
  kernels::multi_tensor_scale(clear_flag(), in, out, 1.0 / 3.0);
  EXPECT_EQ(out[0][2].item<float>(), 1.0f / 3.0f);
}

TEST(Scale, KeepsFloat64Precision) {
  const Tensors in = {at::full({3}, 1e300, at::kDouble), at::full({3}, 0.1, at::kDouble)};
  const Tensors out = outputs_for(in, at::kDouble);
  kernels::multi_tensor_scale(clear_flag(), in, out, 1.0 / 3.0);
  EXPECT_EQ(out[0][0].item<double>(), 1e300 * (1.0 / 3.0));
  EXPECT_EQ(out[1][0].item<double>(), 0.1 * (1.0 / 3.0));
}

// The shapes of Apex's own test of these kernels, with fewer repetitions.
TEST(Scale, AgreesOnApexsShapes) {
  const std::vector<std::pair<int64_t, int64_t>> pairs = {{7777 * 77, 555 * 555}, {777, 555},       {555, 2048 * 32 + 1},
                                                          {2048 * 32 + 1, 555},   {555, 2048 * 32}, {2048 * 32, 555},
                                                          {33333, 555},           {555, 33333}};
  for (const auto& [a, b] : pairs) {
    for (const int repeat : {1, 55}) {
      if (repeat * (a + b) > 4000000) continue;
      Tensors in;
      for (int i = 0; i < repeat; ++i) {
        in.push_back(at::full({a}, 4.0));
        in.push_back(at::full({b}, 4.0));
      }
      const Tensors out = outputs_for(in, at::kHalf);
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_scale(flag, in, out, 1.0 / 4.0);
      for (const at::Tensor& tensor : out) ASSERT_TRUE(tensor.eq(1).all().item<bool>());
      EXPECT_EQ(flag.item<int>(), 0);
    }
  }
}

TEST(Lists, MayBeEmpty) {
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_scale(flag, {}, {}, 2.0);
  kernels::multi_tensor_axpby(flag, {}, {}, {}, 1.0, 1.0, CheckArg::both);
  kernels::multi_tensor_copy({}, {});
  EXPECT_EQ(flag.item<int>(), 0);
}

TEST(Lists, MayMixDtypesWithinOneList) {
  const Tensors in = {random_values(100, at::kHalf), random_values(70000, at::kFloat), random_values(5, at::kBFloat16),
                      random_values(300, at::kHalf)};
  const Tensors out = {at::zeros({100}), at::zeros({70000}), at::zeros({5}, at::kHalf), at::zeros({300}, at::kDouble)};
  kernels::multi_tensor_scale(clear_flag(), in, out, kFactor);
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_TRUE(same_bits(out[i], expected_scale(in[i], kFactor, out[i].scalar_type()))) << i;
}

}  // namespace
}  // namespace kernels_test
