// Underflow counts compared with LibTorch's rounding of the scaled values.
#include "tests/statistics/support.h"

namespace apex::test {
namespace {

// Products with a power of two are exact in float64. LibTorch rounds float64 to float32 first, so all products must be exact in
// float32.
void expect_rounded(const torch::Tensor& values, double scale, torch::Dtype dtype) {
  const auto record = amp::statistics(std::vector<torch::Tensor>{values}).at(0);
  const auto kept = values.to(torch::kDouble).masked_select(values.isfinite().logical_and(values.ne(0))) * scale;
  ASSERT_TRUE(kept.to(torch::kFloat).to(torch::kDouble).equal(kept));
  const auto size = kept.to(torch::kFloat).to(dtype).to(torch::kDouble).abs();
  const int64_t zero = size.eq(0).sum().item<int64_t>();
  const int64_t small = size.lt(dtype == torch::kHalf ? 0x1p-14 : 0x1p-126).sum().item<int64_t>();
  const auto underflow = record.underflow(scale, dtype);
  EXPECT_EQ(underflow.zero, zero);
  EXPECT_EQ(underflow.subnormal, small - zero);
  const auto all = static_cast<double>(std::max<int64_t>(kept.numel(), 1));
  EXPECT_EQ(underflow.zero_share, static_cast<double>(zero) / all);
  EXPECT_EQ(underflow.subnormal_share, static_cast<double>(small - zero) / all);
}

// All thresholds, and the adjacent values in the values' own dtype.
torch::Tensor around_edges(torch::Dtype dtype, double scale) {
  std::vector<float> values;
  for (const int exponent : {-24, -25, -26, -14, -15, -133, -134, -135, -126, -127, 0}) {
    for (const double factor : {1.0, 1 - 0x1p-11, 1 - 0x1p-8, 0.5 + 0x1p-20, 1.5}) {
      const auto value = static_cast<float>(std::ldexp(factor, exponent) / scale);
      for (const float x : {value, std::nextafter(value, 1e38F), std::nextafter(value, 0.0F)}) values.push_back(x);
    }
  }
  return torch::tensor(values).to(dtype);
}

TEST(Underflow, IsExactAtEveryEdge) {
  for (const auto input : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
      for (const double scale : {1.0, 2.0, 65536.0, 0x1p24}) {
        SCOPED_TRACE(::testing::Message() << input << " to " << dtype << " at " << scale);
        expect_rounded(around_edges(input, scale), scale, dtype);
      }
    }
  }
}

TEST(Underflow, IsExactForEvery16BitValue) {
  for (const auto input : {torch::kHalf, torch::kBFloat16}) {
    const auto all = torch::arange(0, 65536, torch::kInt).to(torch::kShort).view(input);
    const auto small = all.masked_select(all.to(torch::kFloat).abs().lt(1));
    for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
      for (const double scale : {1.0, 128.0, 65536.0}) expect_rounded(small, scale, dtype);
    }
  }
}

TEST(Underflow, OfRandomGradientsMatchesTheirCast) {
  torch::manual_seed(5);
  const auto grads = torch::randn({100000}) * torch::exp2(torch::rand({100000}) * 40 - 45);
  for (const double scale : {1.0, 1024.0, 65536.0}) expect_rounded(grads, scale, torch::kHalf);
}

TEST(Underflow, OfAnyScaleIsThatOfTheNextSmallerPowerOfTwo) {
  torch::manual_seed(6);
  const auto record = amp::statistics(std::vector<torch::Tensor>{torch::randn({5000}) * 1e-9}).at(0);
  const auto given = record.underflow(1000, torch::kHalf), smaller = record.underflow(512, torch::kHalf);
  EXPECT_GT(smaller.zero, 0);
  EXPECT_EQ(given.zero, smaller.zero);
  EXPECT_EQ(given.subnormal, smaller.subnormal);
}

TEST(Underflow, OfNothingIsZero) {
  const auto record = amp::statistics(std::vector<torch::Tensor>{torch::zeros({3})}).at(0);
  EXPECT_EQ(record.underflow(1, torch::kHalf).zero, 0);
  EXPECT_EQ(record.underflow(1, torch::kHalf).zero_share, 0);
}

TEST(Underflow, RejectsInvalidScalesAndDtypes) {
  const auto record = amp::statistics(std::vector<torch::Tensor>{torch::ones({3})}).at(0);
  for (const double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(record.underflow(scale, torch::kHalf), c10::ValueError) << scale;
  }
  EXPECT_THROW(record.underflow(1, torch::kFloat), c10::ValueError);
}

}  // namespace
}  // namespace apex::test
