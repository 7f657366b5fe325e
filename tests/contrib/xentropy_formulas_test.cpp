// Compares the softmax cross entropy formulas on plain numbers, as a GPU thread computes them, with float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/xentropy/formulas.h"

namespace apex::kernels::xentropy {
namespace {

// An exponential is within 2 of these units of the exact one (formulas.h).
constexpr double kUnit = 0x1p-23;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(XentropyFormulas, PowersOfTwoAreExact) {
  EXPECT_EQ(power_of_two(-127.0F + kToInteger), 0.0F);
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(power_of_two(static_cast<float>(n) + kToInteger), std::ldexp(1.0F, n)) << n;
}

/// Every 61st float32 of either sign from 2^-30 to the ends of the range: 137,000 values between two powers of 2.
TEST(XentropyFormulas, ExponentialIsWithinTwoUlps) {
  for (const auto& [sign, end] : {std::pair{-1.0F, 87.0F}, std::pair{1.0F, 88.0F}}) {
    double worst = 0;
    float at = 0;
    for (uint32_t bits = rules::to_bits(0x1p-30F); bits <= rules::to_bits(end); bits += 61) {
      const float x = sign * rules::from_bits(bits);
      const double exact = std::exp(static_cast<double>(x));
      const double off = std::abs(exponential(x) - exact) / exact;
      if (!(off <= worst)) worst = off, at = x;
    }
    EXPECT_LE(worst, 2 * kUnit) << at;
  }
}

TEST(XentropyFormulas, ExponentialAtTheEndsOfItsRange) {
  EXPECT_EQ(exponential(0.0F), 1.0F);
  EXPECT_EQ(exponential(-0.0F), 1.0F);
  EXPECT_NEAR(exponential(-87.0F), std::exp(-87.0), std::exp(-87.0) * 2 * kUnit);
  for (const float x : {std::nextafter(-87.0F, -88.0F), -87.3F, -100.0F, -1e6F, -3e38F, -kInfinity}) {
    EXPECT_EQ(exponential(x), 0.0F) << x;
  }
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(XentropyFormulas, UnlessBelowIsStrictAndKeepsNan) {
  EXPECT_EQ(unless_below(-87.0F, -87.0F, 3.0F), 3.0F);
  EXPECT_EQ(unless_below(-87.0F, -88.0F, 3.0F), 0.0F);
  EXPECT_EQ(unless_below(-87.0F, std::numeric_limits<float>::quiet_NaN(), 3.0F), 3.0F);
}

/// x - lse is rounded, which moves its exponential by |x - lse| 2^-24 of itself; the exponential is within 2 units; the
/// difference from the target and the product are rounded to a half unit each. A thousandth more is for products of these.
TEST(XentropyFormulas, GradientFollowsTheFormula) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> below(0.0F, 90.0F), middle(-50.0F, 50.0F), share(0.0F, 1.0F);
  std::normal_distribution<float> grads;
  for (int i = 0; i < 100000; ++i) {
    const float lse = middle(random), x = lse - below(random), grad = grads(random);
    const float target = i % 3 == 0 ? 0.0F : share(random);
    const double distance = static_cast<double>(x) - lse, probability = std::exp(distance);
    const double wanted = grad * (probability - target);
    const double off_of_probability = distance < -86.9 ? probability : probability * (2 - distance / 2) * kUnit;
    const double allowed = 1.001 * (std::abs(grad) * off_of_probability + std::abs(wanted) * kUnit) + 0x1p-149;
    ASSERT_NEAR(grad_of(grad, x, lse, target), wanted, allowed) << grad << " " << x << " " << lse << " " << target;
  }
}

}  // namespace
}  // namespace apex::kernels::xentropy
