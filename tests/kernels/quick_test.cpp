// Quick, the arithmetic of CUDA packs: results that are not doubtful have the bits of float arithmetic, and common values are
// not doubtful. A GPU's estimates of reciprocals and roots are off by up to a unit in the last place; so are those of the
// tests.
#include "kernels/cuda/quick.h"
#include "kernels/rules/lamb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace kernels_test {
namespace {

namespace cuda = apex::kernels::cuda;
namespace rules = apex::kernels::rules;
using cuda::Quick;

// Any bits: all exponents, subnormal values, Inf and NaN.
std::vector<float> wild_values(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-149f, 0x1p-126f, 0x1.fffffep127f, INFINITY, -INFINITY, NAN};
  while (values.size() < count) values.push_back(rules::from_bits(generator()));
  return values;
}

// Magnitudes of gradients, moments and weights.
std::vector<float> common_values(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> exponent(-30, 10), significand(1, 2);
  std::vector<float> values = {0.0f};
  while (values.size() < count) {
    const float value = std::ldexp(significand(generator), static_cast<int>(exponent(generator)));
    values.push_back(values.size() % 2 == 0 ? value : -value);
  }
  return values;
}

float neighbour(float value, int by) { return by == 0 ? value : std::nextafter(value, by > 0 ? INFINITY : -INFINITY); }

void expect_bits(const Quick& actual, float expected, float a, float b) {
  if (actual.doubtful) return;
  EXPECT_EQ(rules::to_bits(actual.value), rules::to_bits(expected)) << std::hexfloat << a << ' ' << b;
}

constexpr size_t kCount = 200000;

TEST(Quick, ResultsThatAreNotDoubtfulHaveTheBitsOfFloat) {
  const std::vector<float> a = wild_values(kCount, 1), b = wild_values(kCount, 2), c = common_values(kCount, 3);
  for (size_t i = 0; i < kCount; ++i) {
    for (const float divisor : {b[(i * 7) % kCount], std::fabs(c[i])}) {
      expect_bits(divide(Quick(a[i]), Quick(divisor)), a[i] / divisor, a[i], divisor);
      expect_bits(divide(Quick(a[i]), rules::Divisor(divisor)), a[i] / divisor, a[i], divisor);
    }
    expect_bits(square_root(Quick(a[i])), std::sqrt(a[i]), a[i], 0);
  }
}

TEST(Quick, EstimatesThatAreOffByAUnitGiveTheSameBits) {
  const std::vector<float> a = common_values(kCount, 4), b = common_values(kCount, 5);
  for (size_t i = 1; i < kCount; ++i) {
    const float divisor = std::fabs(b[i]), reciprocal = 1 / divisor, inverse = 1 / std::sqrt(divisor);
    for (const int off : {-1, 0, 1}) {
      ASSERT_EQ(cuda::detail::quotient(a[i], divisor, neighbour(reciprocal, off)), a[i] / divisor) << a[i] << ' ' << divisor;
      ASSERT_EQ(cuda::detail::root(divisor, neighbour(inverse, off)), std::sqrt(divisor)) << divisor;
    }
  }
}

TEST(Quick, CommonValuesAreNotDoubtful) {
  const std::vector<float> a = common_values(1000, 6), b = common_values(1000, 7);
  for (size_t i = 1; i < a.size(); ++i) {
    EXPECT_FALSE(divide(Quick(a[i]), Quick(std::fabs(b[i]))).doubtful) << a[i] << ' ' << b[i];
    EXPECT_FALSE(square_root(Quick(std::fabs(a[i]))).doubtful) << a[i];
  }
  EXPECT_FALSE(divide(Quick(0.0f), Quick(1e-8f)).doubtful) << "a moment that is still zero";
  EXPECT_FALSE(square_root(Quick(0.0f)).doubtful);
}

TEST(Quick, DoubtSpreadsToEveryResult) {
  const Quick doubtful(1.0f, true), plain(2.0f);
  EXPECT_TRUE(add(plain, doubtful).doubtful);
  EXPECT_TRUE(multiply(doubtful, plain).doubtful);
  EXPECT_TRUE(divide(doubtful, plain).doubtful);
  EXPECT_TRUE(divide(plain, doubtful).doubtful);
  EXPECT_TRUE(square_root(doubtful).doubtful);
  EXPECT_TRUE(round_to_half(doubtful).doubtful);
  EXPECT_FALSE(add(plain, plain).doubtful);
  EXPECT_TRUE(divide(Quick(NAN), plain).doubtful);
  EXPECT_TRUE(divide(Quick(-0.0f), plain).doubtful) << "the products lose the sign";
}

// A kernel asks the values of lists whether they are doubtful. This update is in none of them: only its square is summed.
TEST(Quick, DoubtOfAnUpdateThatIsOnlySummedReachesAList) {
  rules::LambSums lamb{rules::lamb_stage_1(rules::LambSettings(), /*global_grad_norm=*/0, /*half_updates=*/false)};
  for (rules::Divisor* by : {&lamb.clip, &lamb.moments.correction, &lamb.moments.square_correction}) by->take_products();
  const auto is_doubtful = [&](float grad) {
    Quick gradient(grad), mean(0.0f), square(0.0f);
    double params = 0, updates = 0;
    lamb(gradient, Quick(1.0f), mean, square, params, updates);
    return gradient.doubtful || mean.doubtful || square.doubtful;
  };
  EXPECT_FALSE(is_doubtful(1e-3f));
  EXPECT_TRUE(is_doubtful(1e-20f)) << "the corrected square is 1e-40, whose root a GPU estimates as that of 0";
}

}  // namespace
}  // namespace kernels_test
