// The conversions of 16-bit types that GPUs have as instructions, as their definition says, and those of CPUs: the same values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/rules/arithmetic.h"
#include "tests/cuda_host/layer/half.h"

namespace cuda_host_test {
namespace {

namespace rules = apex::kernels::rules;

bool is_nan(uint16_t half) { return (half & 0x7fffu) > 0x7c00u; }

TEST(HalfConversions, ReadAllValues) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float by_gpu = cuda_host::float_of_half(half), by_cpu = rules::load<float>(rules::Half{half});
    if (is_nan(half)) {
      EXPECT_TRUE(std::isnan(by_gpu) && std::isnan(by_cpu)) << bits;
    } else {
      EXPECT_EQ(rules::to_bits(by_gpu), rules::to_bits(by_cpu)) << bits;
    }
  }
}

void expect_same_half(float value) {
  const uint16_t by_gpu = cuda_host::half_of_float(value), by_cpu = rules::store<rules::Half>(value).bits;
  if (std::isnan(value)) {
    EXPECT_TRUE(is_nan(by_gpu) && is_nan(by_cpu));
  } else {
    EXPECT_EQ(by_gpu, by_cpu) << value;
  }
}

// Every value, and the neighbours of the middle between it and the next.
TEST(HalfConversions, RoundToNearestEven) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const uint32_t value = rules::to_bits(rules::load<float>(rules::Half{static_cast<uint16_t>(bits)}));
    constexpr uint32_t kMiddle = 1u << 12;  // of two neighbours, in units of float32, unless they are subnormal
    for (const uint32_t near : {0u, 1u, kMiddle - 1, kMiddle, kMiddle + 1, 2 * kMiddle - 1}) {
      expect_same_half(rules::from_bits(value + near));
    }
  }
}

// Every 16-bit upper half of a float32, with lower halves that round differently.
TEST(HalfConversions, RoundAllMagnitudes) {
  for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x8000u, 0xffffu}) {
      expect_same_half(rules::from_bits(upper << 16 | lower));
    }
  }
}

TEST(BFloat16Conversions, RoundAllMagnitudes) {
  for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = rules::from_bits(upper << 16 | lower);
      const uint16_t by_gpu = cuda_host::bfloat16_of_float(value), by_cpu = rules::store<rules::BFloat16>(value).bits;
      if (!std::isnan(value)) {
        EXPECT_EQ(by_gpu, by_cpu) << value;
      } else {
        EXPECT_EQ(by_gpu, 0x7fff) << "which kernels replace";
      }
    }
  }
}

}  // namespace
}  // namespace cuda_host_test
