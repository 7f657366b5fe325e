// Division of many values by one number: the bits of an IEEE division in every instruction set. NovoGrad's mean is such a
// quotient when it starts at -0 with beta1 = 0.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace cpu = apex::kernels::cpu;
namespace rules = apex::kernels::rules;
using Floats = std::vector<float>;

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Floats quotients(Floats dividends, float divisor) {
  const auto size = static_cast<int64_t>(dividends.size());
  Floats params(dividends.size()), means(dividends.size(), -0.0f);
  rules::Divisor norm(divisor);
  norm.take_products();  // forces multiplication by the reciprocal on every machine
  const rules::NovoGrad rule{1, 0, 0, 0, 1, 1, norm, /*regularise_inside=*/true};
  const cpu::Block<rules::NovoGrad> block{{dividends.data(), params.data(), means.data()}, {}, size, {}, false, false};
  cpu::kernels_of<rules::NovoGrad>().run[0][0][0](rule, block);
  return means;
}

// The first dividend whose quotient differs from the division operator's, or "".
std::string first_difference(const Floats& dividends, float divisor) {
  const Floats found = quotients(dividends, divisor);
  for (size_t i = 0; i < dividends.size(); ++i) {
    const float expected = dividends[i] / divisor;
    const bool same = std::isnan(expected) ? std::isnan(found[i]) : std::memcmp(&expected, &found[i], sizeof expected) == 0;
    if (!same) return c10::str(std::hexfloat, dividends[i], " / ", divisor, " gave ", found[i], ", not ", expected);
  }
  return "";
}

void expect_quotients(const Floats& dividends, const Floats& divisors) {
  for (const cpu::Isa isa : available_isas()) {
    const UseIsa use(isa);
    for (const float divisor : divisors) ASSERT_EQ(first_difference(dividends, divisor), "") << cpu::name_of(isa);
  }
}

// Bias corrections, difficult mantissas, and numbers at and beyond the limits of the fast path.
Floats shared_divisors() {
  Floats divisors = {1 + 0x1p-23f, 2 - 0x1p-23f, 1.5f,     3,   7,       0x1p-24f, 0x1.8p-25f,
                     0x1p24f,      0x1.8p24f,    0x1p-9f,  -3,  0x1p60f, 1e-30f,   0x1p-149f,
                     0.0f,         -0.0f,        INFINITY, NAN, 1e-8f,   65504,    0x1.fffffep-1f};
  for (const double beta : {0.9, 0.95, 0.98, 0.999, 0.9999})
    for (const int step : {1, 2, 3, 10, 100, 1000}) divisors.push_back(static_cast<float>(1 - std::pow(beta, step)));
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) divisors.push_back(from_bits((0x33800000u + random() % 0x18000000u)));
  return divisors;
}

TEST(Divisor, RandomBitsAndSpecialValues) {
  Floats dividends = {0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-126f, 0x1p-98f, 0x1p98f, -0x1.fffffep97f, 0x1p-99f};
  std::mt19937 random(3);
  while (dividends.size() < 1 << 15) dividends.push_back(from_bits(static_cast<uint32_t>(random())));
  expect_quotients(dividends, shared_divisors());
}

TEST(Divisor, ZerosKeepTheirSign) {
  expect_quotients(Floats(64, 0.0f), shared_divisors());
  expect_quotients(Floats(64, -0.0f), shared_divisors());
}

// Vectors in which no value needs a division use another path than the vectors above.
TEST(Divisor, ValuesOfGradientsAndMoments) {
  Floats dividends;
  std::mt19937 random(5);
  while (dividends.size() < 1 << 15)
    dividends.push_back(from_bits((0x0e800000u + random() % 0x62000000u) | (random() & 1) << 31));
  expect_quotients(dividends, shared_divisors());
}

TEST(Divisor, EveryMantissa) {
  Floats dividends(1 << 23);
  for (uint32_t i = 0; i < dividends.size(); ++i) dividends[i] = from_bits(0x3f800000u + i);
  expect_quotients(dividends, {static_cast<float>(1 - 0.9), 0x1.fffffep-1f, 0.271f});
}

}  // namespace
}  // namespace kernels_test
