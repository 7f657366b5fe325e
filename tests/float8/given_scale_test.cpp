// Rounding to FP8 with a scale that is not the tensor's own, and products of LibTorch's FP8 tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/float8/float8.h"
#include "tests/kernels/support.h"

namespace float8_test {
namespace {

using apex::kernels::Float8;
using apex::kernels::float8_mm;
using apex::kernels::float8_scales;
using apex::kernels::Float8ByGivenScale;
using apex::kernels::Float8Matrix;
using apex::kernels::round_to_float8;
using apex::kernels::round_to_float8_with;
using apex::kernels::round_to_float8_with_by_aten;
using kernels_test::available_isas;
using kernels_test::same_bits;
using kernels_test::Tensors;
using kernels_test::UseIsa;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Float8 kBothFormats[] = {Float8::e4m3, Float8::e5m2};

at::ScalarType type_of(Float8 format) { return format == Float8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }
double end_of(Float8 format) { return format == Float8::e4m3 ? 448 : 57344; }
at::Tensor one_scale(double value) { return at::full({1}, value, at::kFloat); }
Tensors all_of(const Float8ByGivenScale& found) { return {found.rounded.values, found.rounded.scales, found.largest}; }

at::Tensor finite_patterns() {
  const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).clone();
  return all.masked_select(all.isfinite()).view({2, -1});
}

// Values beyond the format saturate: torch's cast alone would make them NaN or Inf.
TEST(RoundingWithAGivenScale, IsTorchsCastOfClampedValues) {
  const at::Tensor x = finite_patterns();
  const double largest = x.abs().max().item<double>();
  for (const Float8 format : kBothFormats) {
    for (const int exponent : {-126, -100, -10, -1, 0, 1, 7, 60, 126}) {
      SCOPED_TRACE(exponent);
      const double scale = std::exp2(exponent);
      const at::Tensor clamped = (x.to(at::kDouble) * scale).clamp(-end_of(format), end_of(format));
      const at::Tensor expected = (clamped.to(type_of(format)).to(at::kDouble) / scale).to(at::kBFloat16);
      for (const auto isa : available_isas()) {
        const UseIsa use(isa);
        EXPECT_TRUE(same_bits(all_of(round_to_float8_with(x, format, one_scale(scale))),
                              {expected, one_scale(scale), one_scale(largest)}));
      }
      EXPECT_TRUE(same_bits(all_of(round_to_float8_with_by_aten(x, format, one_scale(scale))),
                            {expected, one_scale(scale), one_scale(largest)}));
    }
  }
}

at::Tensor mixed_input(at::IntArrayRef sizes) {
  at::manual_seed(3);
  return (at::randn(sizes) * (at::rand(sizes) * 40 - 20).exp2()).to(at::kBFloat16);
}

// Large enough for several tasks and tiles.
TEST(RoundingWithAGivenScale, HasTheSameBitsEverywhere) {
  const Tensors inputs = {mixed_input({2, 70001}), mixed_input({300, 500}).mT(), mixed_input({4, 30, 50}).slice(2, 3, 40)};
  const auto rounded_by = [&](auto round) {
    Tensors results;
    for (const at::Tensor& x : inputs) {
      for (const Float8 format : kBothFormats) {
        for (const double scale : {0.0, 0.125, 64.0}) {
          for (const at::Tensor& each : all_of(round(x, format, one_scale(scale)))) results.push_back(each);
        }
      }
    }
    return results;
  };
  kernels_test::expect_same_everywhere([&] { return rounded_by(round_to_float8_with); });
  EXPECT_TRUE(same_bits(rounded_by(round_to_float8_with), rounded_by(round_to_float8_with_by_aten)));
}

TEST(RoundingWithAGivenScale, TakesItsOwnScaleForZero) {
  const at::Tensor x = mixed_input({30, 50});
  for (const Float8 format : kBothFormats) {
    const auto own = round_to_float8(x, format, {});
    for (const auto round : {round_to_float8_with, round_to_float8_with_by_aten}) {
      EXPECT_TRUE(
          same_bits(all_of(round(x, format, one_scale(0))), {own.values, own.scales, x.abs().max().to(at::kFloat).view(1)}));
    }
  }
}

TEST(RoundingWithAGivenScale, MakesATensorWithInfOrNanNan) {
  for (const double value : {kInf, -kInf, std::nan("")}) {
    at::Tensor x = mixed_input({30, 50});
    x[7][9] = value;
    for (const auto round : {round_to_float8_with, round_to_float8_with_by_aten}) {
      for (const double scale : {0.0, 1.0}) {
        const auto found = round(x, Float8::e4m3, one_scale(scale));
        EXPECT_TRUE(found.rounded.values.isnan().all().item<bool>());
        EXPECT_TRUE(found.rounded.scales.isnan().item<bool>());
        EXPECT_EQ(found.largest.item<double>(), kInf);
      }
    }
  }
}

TEST(RoundingWithAGivenScale, TakesEmptyTensors) {
  for (const auto round : {round_to_float8_with, round_to_float8_with_by_aten}) {
    const auto found = round(at::empty({0, 5}, at::kBFloat16), Float8::e5m2, one_scale(8));
    EXPECT_EQ(found.rounded.values.sizes(), at::IntArrayRef({0, 5}));
    EXPECT_EQ(found.largest.item<double>(), 0);
    EXPECT_EQ(found.rounded.scales.item<double>(), 8);
    EXPECT_EQ(round(at::empty({5, 0}, at::kBFloat16), Float8::e5m2, one_scale(0)).rounded.scales.item<double>(), 1);
  }
}

TEST(ScalesOfFloat8, AreThoseOfTensorsWithTheseMagnitudes) {
  const at::Tensor magnitudes = finite_patterns().abs().flatten().slice(0, 0, 65280, 37);
  for (const Float8 format : kBothFormats) {
    const at::Tensor scales = float8_scales(magnitudes.to(at::kFloat), format);
    ASSERT_EQ(scales.sizes(), magnitudes.sizes());
    EXPECT_TRUE(same_bits(scales, round_to_float8(magnitudes.view({-1, 1}), format, {1, 1}).scales.flatten()));
  }
}

// The operands are exact in FP8, so the sums are those of bfloat16 operands. K additions and one rounding to bfloat16: the
// bound of tests/float8/product_test.cpp.
void expect_float8_mm(Float8 of_a, Float8 of_b, bool transposed, bool has_bias) {
  const int64_t k = 64;
  const at::Tensor x = at::randn({48, k}).to(at::kBFloat16) * 3;
  const at::Tensor y = transposed ? at::randn({32, k}).to(at::kBFloat16).t() : at::randn({k, 32}).to(at::kBFloat16);
  const Float8Matrix a{round_to_float8(x, of_a, {}), of_a}, b{round_to_float8(y, of_b, {}), of_b};
  std::optional<at::Tensor> bias;
  if (has_bias) bias = at::randn({32, 2}).to(at::kBFloat16).select(1, 0);  // strided
  const at::Tensor found = float8_mm(a, b, bias);
  ASSERT_EQ(found.scalar_type(), at::kBFloat16);
  const at::Tensor wide_a = a.rounded.values.to(at::kDouble), wide_b = b.rounded.values.to(at::kDouble);
  at::Tensor exact = wide_a.matmul(wide_b), magnitudes = wide_a.abs().matmul(wide_b.abs());
  if (bias) exact = exact + bias->to(at::kDouble), magnitudes = magnitudes + bias->to(at::kDouble).abs();
  const at::Tensor bound = (k + 2) * std::pow(2, -24) * magnitudes;
  EXPECT_EQ((found.to(at::kDouble) - exact).abs().gt(bound + std::pow(2, -8) * (exact.abs() + bound)).sum().item<int64_t>(), 0);
}

TEST(Float8Mm, IsTheProductOfTheRoundedMatrices) {
  at::manual_seed(4);
  for (const bool transposed : {false, true}) {
    for (const bool has_bias : {false, true}) {
      expect_float8_mm(Float8::e4m3, Float8::e4m3, transposed, has_bias);
      expect_float8_mm(Float8::e5m2, Float8::e4m3, transposed, has_bias);
      expect_float8_mm(Float8::e4m3, Float8::e5m2, transposed, has_bias);
    }
  }
}

TEST(Float8Mm, IsNotForCpus) { EXPECT_FALSE(apex::kernels::has_float8_products(at::kCPU)); }

}  // namespace
}  // namespace float8_test
