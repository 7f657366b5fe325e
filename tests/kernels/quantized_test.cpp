// Moments in 8 bits (kernels/rules/quantized.h): the codes, and Adam with them against Adam with float32 moments.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rules/quantized.h"
#include "tests/kernels/host_grid.h"
#include "tests/kernels/small_problems.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
namespace rules = apex::kernels::rules;

// Exponents of scales: the smallest, the largest, and some between.
const std::vector<uint32_t> kExponents = {1, 2, 60, 126, 127, 128, 200, 252, 253};

TEST(MomentCode, IsTheNearestOfItsOwnValue) {
  for (const uint32_t exponent : kExponents) {
    const float scale = rules::scale_of(exponent), inverse = rules::inverse_scale(exponent);
    for (int code = -127; code <= 127; ++code) {
      const float value = rules::mean_of_code(static_cast<int8_t>(code), scale);
      // Values below the normal range have lost bits.
      if (code != 0 && std::abs(value) < 0x1p-126f) continue;
      ASSERT_EQ(rules::mean_code(value, inverse, rules::kNearest), code) << exponent;
    }
    for (int code = 0; code <= 255; ++code) {
      const float value = rules::square_of_code(static_cast<uint8_t>(code), scale);
      if (!std::isfinite(value) || (code != 0 && value < 0x1p-126f)) continue;
      ASSERT_EQ(rules::square_code(std::sqrt(value), inverse, rules::kNearest), code) << exponent;
    }
  }
}

TEST(MomentCode, HasTheSmallestPowerOfTwoThatHoldsItsGroup) {
  for (const float largest : {1e-38f, 1e-20f, 0.5f, std::nextafter(0.5f, 1.0f), 1.0f, 3.0f, 1e30f}) {
    const uint32_t exponent = rules::scale_exponent(rules::to_bits(largest));
    const double scale = rules::scale_of(exponent);
    EXPECT_GE(scale, largest);
    EXPECT_TRUE(scale / 2 < largest || exponent == 1) << largest;
    EXPECT_EQ(scale * static_cast<double>(rules::inverse_scale(exponent)), 1.0);
  }
  EXPECT_EQ(rules::scale_exponent(0), 0u);
  EXPECT_EQ(rules::scale_exponent(1), 1u);
  EXPECT_EQ(rules::scale_exponent(rules::to_bits(3e38f)), rules::kLargestExponent);
  for (const float value : {INFINITY, NAN}) EXPECT_EQ(rules::scale_exponent(rules::to_bits(value)), rules::kNonfiniteExponent);
}

TEST(MomentCode, OfASquareAboveZeroIsNotZero) {
  EXPECT_EQ(rules::square_code(0x1p-20f, 1.0f, 0), 1);
  EXPECT_EQ(rules::square_code(0.0f, 1.0f, 0), 0);
  EXPECT_EQ(rules::square_code(0.0f, 1.0f, rules::kUnits - 1), 0);
}

// Where roundings are unbiased, their mean over n keys is within 6 standard errors of the value: 6 * step / (2 sqrt(n)), for a
// step that is at most that above the value's code. A right implementation fails with a probability of 2e-9 a value.
TEST(MomentCode, IsRoundedWithoutBias) {
  constexpr int kCount = 20000;
  for (const float value : {0.001f, 0.01f, 0.1f, 0.3f, 0.77f, 1.0f}) {
    double means = 0, squares = 0;
    for (int i = 0; i < kCount; ++i) {
      const uint32_t bits = rules::mixed(rules::rounding_key(i, 3) + 17);
      means += std::sqrt(
          std::abs(rules::mean_of_code(rules::mean_code(-value, 1.0f, static_cast<int>(rules::distance_of_mean(bits))), 1.0f)));
      squares += std::sqrt(
          rules::square_of_code(rules::square_code(value, 1.0f, static_cast<int>(rules::distance_of_square(bits))), 1.0f));
    }
    const double bound = 6 / (2 * std::sqrt(kCount));
    EXPECT_NEAR(means / kCount, std::sqrt(value), bound / 127);
    // Smaller ones become the first code.
    if (value * 255 > 1) {
      EXPECT_NEAR(squares / kCount, value, bound / 255);
    }
  }
}

// ---- Adam ----

at::Tensor values_of(const at::Tensor& codes, int64_t numel, bool squares) {
  at::Tensor values = at::empty({numel}, at::kFloat);
  const auto* const bytes = codes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < numel; ++i) {
    const float scale = rules::scale_of(bytes[rules::group_count(numel) * rules::kGroup + i / rules::kGroup]);
    values.mutable_data_ptr<float>()[i] =
        squares ? rules::square_of_code(bytes[i], scale) : rules::mean_of_code(static_cast<int8_t>(bytes[i]), scale);
  }
  return values;
}

Coded with_values(const Coded& coded) {
  Coded exact = coded.copy();
  for (size_t i = 0; i < exact.params.size(); ++i) {
    exact.means[i] = values_of(coded.means[i], coded.params[i].numel(), false);
    exact.squares[i] = values_of(coded.squares[i], coded.params[i].numel(), true);
  }
  return exact;
}

// Parameters take the step of exact moments. The moments are then within one code, of the scale of their group.
void expect_rounded_moments(const Coded& coded, const Coded& exact) {
  EXPECT_TRUE(same_bytes(coded.params, exact.params) && same_bytes(coded.models, exact.models));
  for (size_t t = 0; t < coded.params.size(); ++t) {
    const int64_t numel = coded.params[t].numel();
    const at::Tensor means = values_of(coded.means[t], numel, false), squares = values_of(coded.squares[t], numel, true);
    for (int64_t i = 0; i < numel; ++i) {
      const auto scale_of = [&](const at::Tensor& codes) {
        return rules::scale_of(codes.const_data_ptr<uint8_t>()[rules::group_count(numel) * rules::kGroup + i / rules::kGroup]);
      };
      const auto root = [](float value) { return std::sqrt(std::abs(value)); };
      const float mean = means[i].item<float>(), expected = exact.means[t][i].item<float>();
      ASSERT_LE(std::abs(root(mean) - root(expected)), std::sqrt(scale_of(coded.means[t])) / 127 * 1.0001) << i;
      ASSERT_TRUE(mean == 0 || std::signbit(mean) == std::signbit(expected));
      const float square = exact.squares[t][i].item<float>();
      ASSERT_LE(std::abs(root(squares[i].item<float>()) - root(square)), scale_of(coded.squares[t]) / 255 * 1.0001) << i;
      ASSERT_EQ(squares[i].item<float>() == 0, square == 0);
    }
    const auto* const bytes = coded.means[t].const_data_ptr<uint8_t>();
    for (int64_t i = numel; i < rules::group_count(numel) * rules::kGroup; ++i) ASSERT_EQ(bytes[i], 0) << "behind the tensor";
  }
}

TEST(CodedAdam, StepsByExactMomentsAndRoundsThem) {
  for (const Kind kind : kKinds) {
    for (const auto grad : {at::kBFloat16, at::kHalf, at::kFloat}) {
      SCOPED_TRACE(name_of(grad) + ", kind " + std::to_string(static_cast<int>(kind)));
      const Coded coded = make_coded(kind, grad), exact = with_values(coded);
      adam(coded);
      adam(exact);
      expect_rounded_moments(coded, exact);
    }
  }
}

TEST(CodedAdam, HasTheSameBitsEverywhere) {
  for (const Kind kind : kKinds) {
    const Coded problem = make_coded(kind, at::kBFloat16, {1, 33, 1030, 65535, 65537, 70000});
    expect_same_everywhere([&] {
      const Coded work = problem.copy();
      for (int64_t step = 1; step < 4; ++step) adam(work, step);
      return work.all();
    });
  }
}

TEST(DeviceCodedAdam, HasTheBitsOfTheScalarDriver) {
  for (const Kind kind : kKinds) {
    for (const auto grad : {at::kBFloat16, at::kFloat}) {
      const Coded problem = make_coded(kind, grad);
      const auto expected = [&] {
        const UseIsa isa(kernels::cpu::Isa::portable);
        const Coded work = problem.copy();
        adam(work);
        return work.all();
      }();
      for (const Grid& grid : std::vector<Grid>{{1, 32, false}, {3, 96, false}, {7, 256, true}}) {
        const Coded work = problem.copy();
        const OnHostGrid on_grid(grid);
        adam(work);
        EXPECT_EQ(on_grid.launches(), 1);
        EXPECT_TRUE(same_bytes(work.all(), expected)) << static_cast<int>(kind) << ", " << name_of(grad);
      }
    }
  }
}

// Tensors that do not start at a multiple of 16 bytes.
TEST(DeviceCodedAdam, HasTheSameBitsAtEveryAlignment) {
  const Coded problem = make_coded(Kind::split8, at::kBFloat16, {1030});
  const Coded expected = problem.copy();
  adam(expected);
  for (const int64_t offset : {1, 2, 3, 8}) {
    const auto moved = [&](const at::Tensor& tensor) {
      const at::Tensor place = at::zeros({tensor.numel() + offset}, tensor.options()).narrow(0, offset, tensor.numel());
      return place.copy_(tensor);
    };
    Coded work = problem.copy();
    for (Tensors* list : {&work.grads, &work.params, &work.means, &work.squares, &work.models}) (*list)[0] = moved((*list)[0]);
    const OnHostGrid on_grid;
    adam(work);
    EXPECT_TRUE(same_bytes(work.all(), expected.all())) << offset;
  }
}

TEST(CodedAdam, RoundsEachStepAndTensorByItsOwnNumbers) {
  const Coded first = make_coded(Kind::alone, at::kFloat, {4096});
  const Coded second = first.copy();
  Coded both = first.copy();
  for (Tensors* list : {&both.grads, &both.params, &both.means, &both.squares}) list->push_back(list->front().clone());
  adam(first, 5);
  adam(second, 6);
  adam(both, 5);
  EXPECT_FALSE(same_bytes({first.means[0]}, {second.means[0]}));
  EXPECT_TRUE(same_bytes({both.means[0]}, {first.means[0]}));
  EXPECT_FALSE(same_bytes({both.means[1]}, {first.means[0]}));
}

TEST(CodedAdam, GivesPartsTheCodesOfTheWhole) {
  for (const Kind kind : {Kind::alone, Kind::split8}) {
    const Coded before = make_coded(kind, at::kFloat, {70, 70001}), whole = before.copy();
    adam(whole);
    for (const auto& [begin, size] : {std::pair<int64_t, int64_t>(0, 64), {64, 65920}, {65984, 4017}}) {
      kernels::AdamSettings settings = adam_settings(5);
      settings.first_position = 1;
      settings.first_element = begin;
      const Coded part = part_of(before, 1, begin, size), expected = part_of(whole, 1, begin, size);
      adam(part, settings);
      EXPECT_TRUE(same_bytes(part.all(), expected.all())) << begin;
      const Coded on_device = part_of(before, 1, begin, size);
      const OnHostGrid on_grid;
      adam(on_device, settings);
      EXPECT_TRUE(same_bytes(on_device.all(), expected.all())) << begin;
    }
  }
}

TEST(CodedAdam, ChangesNothingIfFoundInfIsSet) {
  const Coded problem = make_coded(Kind::split8, at::kBFloat16), before = problem.copy();
  adam(problem, 5, at::ones({1}, at::kInt));
  EXPECT_TRUE(same_bytes(problem.all(), before.all()));
}

TEST(CodedAdam, MakesAGroupWithNaNOrInfNaN) {
  for (const float bad : {NAN, INFINITY}) {
    const Coded problem = make_coded(Kind::alone, at::kFloat, {96});
    problem.grads[0][40] = bad;
    adam(problem);
    for (const bool squares : {false, true}) {
      const at::Tensor codes = squares ? problem.squares[0] : problem.means[0], values = values_of(codes, 96, squares);
      EXPECT_TRUE(codes.narrow(0, 32, 32).eq(0).all().item<bool>()) << "codes of a group that has none";
      EXPECT_TRUE(values.narrow(0, 32, 32).isnan().all().item<bool>());
      EXPECT_TRUE(values.narrow(0, 0, 32).isfinite().all().item<bool>() &&
                  values.narrow(0, 64, 32).isfinite().all().item<bool>());
    }
  }
}

TEST(CodedAdam, RefusesOtherSizesAndMixedKinds) {
  Coded problem = make_coded(Kind::alone, at::kFloat, {33, 64});
  Coded wrong = problem.copy();
  wrong.squares[1] = at::zeros({64}, at::kByte);
  expect_error([&] { adam(wrong); }, {"exp_avg_sqs[1] has sizes [64]", "a tensor of 66 bytes"});
  wrong = problem.copy();
  wrong.means[0] = at::zeros({33});
  expect_error([&] { adam(wrong); }, {"3 of the 4 moments are codes"});
  const Tensors codes = {at::zeros({66}, at::kByte)}, grads = {at::ones({66})}, params = {at::ones({66})};
  kernels::SgdSettings settings;
  settings.momentum = 0.9;
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, codes, {}, settings); }, {"momentum_buffers[0] has dtype Byte"});
}

}  // namespace
}  // namespace kernels_test
