// The conversions of rules/convert.h against c10's, value by value: stores round to nearest even.
#include <gtest/gtest.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/rules/arithmetic.h"

namespace {

namespace rules = apex::kernels::rules;

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Storage, class Reference>
void expect_store_matches(float value) {
  const Reference expected(value);
  const auto actual = rules::store<Storage>(value);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(rules::load<float>(actual))) << std::hex << bits_of(value);
  } else {
    ASSERT_EQ(actual.bits, expected.x) << value << ", bits " << std::hex << bits_of(value);
  }
}

template <class Storage, class Reference>
void expect_all_loads_match() {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float expected = Reference(static_cast<uint16_t>(bits), Reference::from_bits());
    const float actual = rules::load<float>(Storage{static_cast<uint16_t>(bits)});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << std::hex << bits;
    } else {
      ASSERT_EQ(bits_of(actual), bits_of(expected)) << std::hex << bits;
    }
  }
}

// Every 16-bit value, every midpoint between adjacent values, and the float32 values next to each.
template <class Storage, class Reference>
void expect_stores_match_around_every_value() {
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    const float value = Reference(static_cast<uint16_t>(bits), Reference::from_bits());
    const float next = Reference(static_cast<uint16_t>(bits + 1), Reference::from_bits());
    const float middle = static_cast<float>((static_cast<double>(value) + static_cast<double>(next)) / 2);
    for (const float center : {value, middle}) {
      for (const uint32_t step : {0u, 1u, 0xffffffffu}) {
        ASSERT_NO_FATAL_FAILURE((expect_store_matches<Storage, Reference>(float_of(bits_of(center) + step))));
      }
    }
  }
}

template <class Storage, class Reference>
void expect_random_stores_match() {
  std::mt19937 generator(1);
  for (int i = 0; i < 2000000; ++i) {
    ASSERT_NO_FATAL_FAILURE((expect_store_matches<Storage, Reference>(float_of(static_cast<uint32_t>(generator())))));
  }
}

TEST(Convert, LoadsEveryHalf) { expect_all_loads_match<rules::Half, c10::Half>(); }
TEST(Convert, LoadsEveryBFloat16) { expect_all_loads_match<rules::BFloat16, c10::BFloat16>(); }
TEST(Convert, StoresHalfRoundedToNearestEven) { expect_stores_match_around_every_value<rules::Half, c10::Half>(); }
TEST(Convert, StoresBFloat16RoundedToNearestEven) { expect_stores_match_around_every_value<rules::BFloat16, c10::BFloat16>(); }
TEST(Convert, StoresRandomFloatsAsHalf) { expect_random_stores_match<rules::Half, c10::Half>(); }
TEST(Convert, StoresRandomFloatsAsBFloat16) { expect_random_stores_match<rules::BFloat16, c10::BFloat16>(); }

TEST(Convert, RoundsTiesToEvenInHalf) {
  EXPECT_EQ(rules::store<rules::Half>(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(rules::store<rules::Half>(1.0f + 0x3p-11f).bits, 0x3c02);
  EXPECT_EQ(rules::store<rules::Half>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(rules::store<rules::Half>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(rules::store<rules::Half>(-0x1p-25f).bits, 0x8000);
  EXPECT_EQ(rules::store<rules::Half>(0x1.8p-24f).bits, 0x0002);
}

TEST(Convert, StoresNaNAsNaNAndInfAsInf) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rules::store<rules::Half>(nan).bits & 0x7fff, 0x7e00);
  EXPECT_EQ(rules::store<rules::BFloat16>(nan).bits & 0x7fff, 0x7fc0);
  EXPECT_EQ(rules::store<rules::Half>(-inf).bits, 0xfc00);
  EXPECT_EQ(rules::store<rules::BFloat16>(-inf).bits, 0xff80);
  // A NaN whose payload has only low bits, which the shorter mantissa drops, must not become Inf.
  EXPECT_TRUE(std::isnan(rules::load<float>(rules::store<rules::Half>(float_of(0x7f800001)))));
  EXPECT_TRUE(std::isnan(rules::load<float>(rules::store<rules::BFloat16>(float_of(0x7f800001)))));
}

}  // namespace
