// Statistics of tensors: the results of the CPU.
#include <ATen/ATen.h>

#include <cmath>
#include <cstring>

#include "kernels/statistics/statistics.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
namespace statistics = apex::kernels::statistics;

bool same_number(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same(const kernels::TensorStatistics& actual, const kernels::TensorStatistics& expected) {
  EXPECT_EQ(actual.zeros, expected.zeros);
  EXPECT_EQ(actual.inf, expected.inf);
  EXPECT_EQ(actual.nan, expected.nan);
  EXPECT_TRUE(same_number(actual.sum, expected.sum));
  EXPECT_TRUE(same_number(actual.sum_of_squares, expected.sum_of_squares));
  EXPECT_TRUE(same_number(actual.abs_max, expected.abs_max));
  ASSERT_EQ(actual.exponents.size(), expected.exponents.size());
  for (size_t i = 0; i < actual.exponents.size(); ++i) {
    EXPECT_EQ(actual.exponents[i].exponent, expected.exponents[i].exponent);
    EXPECT_EQ(actual.exponents[i].parts, expected.exponents[i].parts);
  }
}

// Values of all magnitudes, with zeros, Inf and NaN.
at::Tensor wild_values(int64_t size, at::ScalarType dtype) {
  const at::Tensor values = at::randn({size}, at::kDouble) * at::exp2(at::randint(-30, 15, {size}, at::kDouble));
  const at::Tensor kind = at::randint(0, 40, {size});
  values.masked_fill_(kind.eq(0), 0.0).masked_fill_(kind.eq(1), -0.0).masked_fill_(kind.eq(2), std::nan(""));
  return values.masked_fill_(kind.eq(3), -INFINITY).to(dtype);
}

class HostStatistics : public OnFakeDeviceWith<at::ScalarType> {
 protected:
  static void expect_those_of_the_cpu(const std::vector<int64_t>& sizes) {
    Tensors values;
    for (const int64_t size : sizes) values.push_back(wild_values(size, GetParam()));
    const statistics::JobMemory memory(on(kDevice, values));
    statistics::cuda::run(GetParam(), kDevice, memory.job());
    const auto actual = memory.results(), expected = kernels::tensor_statistics(values);
    for (size_t i = 0; i < sizes.size(); ++i) {
      SCOPED_TRACE(sizes[i]);
      expect_same(actual[i], expected[i]);
    }
  }
};

TEST_P(HostStatistics, AreThoseOfTheCpu) {
  expect_those_of_the_cpu({0, 1, 31, 32, 33, 5000});
  if (!is_small()) expect_those_of_the_cpu({131072, 0, 131073, 300000, 1000003});
}

// A launch has 7 blocks here: a second round, which must wait for the first. Two blocks count the values of the first tensor.
TEST_P(HostStatistics, OfMoreTilesThanBlocksAreThoseOfTheCpu) {
  std::vector<int64_t> sizes = {statistics::kTile + 700};
  for (int64_t i = 0; i < 17; ++i) sizes.push_back(30 * i);
  expect_those_of_the_cpu(sizes);
}

TEST_P(HostStatistics, OfNoElementsAreThoseOfTheCpu) { expect_those_of_the_cpu({0, 0}); }

INSTANTIATE_TEST_SUITE_P(Dtypes, HostStatistics, ::testing::ValuesIn(kernels_test::dtypes()),
                         [](const auto& test) { return kernels_test::name_of(test.param); });

}  // namespace
}  // namespace cuda_host_test
