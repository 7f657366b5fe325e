#pragma once

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/statistics.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace apex::test {

inline const std::vector<torch::Dtype>& statistics_dtypes() {
  static const std::vector<torch::Dtype> dtypes{torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble};
  return dtypes;
}

/// The bits of a float64: in this comparison -0 differs from 0, and equal NaNs are equal.
inline int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline void expect_same_bits(const std::vector<amp::TensorStatistics>& a, const std::vector<amp::TensorStatistics>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(bits_of(a[i].abs_max), bits_of(b[i].abs_max)) << i;
    EXPECT_EQ(bits_of(a[i].mean), bits_of(b[i].mean)) << i;
    EXPECT_EQ(bits_of(a[i].norm), bits_of(b[i].norm)) << i;
    EXPECT_EQ(a[i].zeros, b[i].zeros) << i;
    EXPECT_EQ(a[i].inf, b[i].inf) << i;
    EXPECT_EQ(a[i].nan, b[i].nan) << i;
    EXPECT_EQ(a[i].exponents, b[i].exponents) << i;
  }
}

/// Values over the whole range of the dtype, including subnormal ones, zeros of both signs, Inf and NaN.
inline torch::Tensor wild_values(int64_t count, torch::Dtype dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const double range = dtype == torch::kHalf ? 13 : dtype == torch::kDouble ? 900 : 120;
  auto values = torch::randn({count}, generator, torch::kDouble) *
                torch::exp2(torch::rand({count}, generator, torch::kDouble) * (2 * range + 12) - range - 12);
  const auto kind = torch::randint(0, 40, {count}, generator);
  values.masked_fill_(kind.eq(0), 0.0).masked_fill_(kind.eq(1), -0.0).masked_fill_(kind.eq(2), std::nan(""));
  values.masked_fill_(kind.eq(3), -std::numeric_limits<double>::infinity());
  return values.to(dtype);
}

/// Values as in training, with few adjacent exponents: including zeros and some powers of two, values just below one, and
/// subnormal values.
inline torch::Tensor tame_values(int64_t count, torch::Dtype dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto values = torch::randn({count}, generator, torch::kDouble) * 0.01;
  const auto kind = torch::randint(0, 300, {count}, generator);
  values.masked_fill_(kind.lt(60), 0.0).masked_fill_(kind.eq(60), -0.0);
  values.masked_fill_(kind.eq(61), -0.0625).masked_fill_(kind.eq(62), 0x1.ffp-9).masked_fill_(kind.eq(63), 0x1.fffp-8);
  values.masked_fill_(kind.eq(64), dtype == torch::kHalf ? 0x1.8p-22 : 0x1.8p-130);
  return values.to(dtype);
}

}  // namespace apex::test
