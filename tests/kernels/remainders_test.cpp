// Parameters that are stored as bfloat16 and remainders (kernels/rules/remainder.h): the stored pair against the float32 value
// that it stands for, and every update of such parameters against the same update of float32 parameters.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rules/remainder.h"
#include "tests/kernels/host_grid.h"
#include "tests/kernels/small_problems.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
namespace rules = apex::kernels::rules;

const std::vector<uint32_t> kLowerBits = {0,      1,      2,      0x7e,   0x7f,   0x80,   0x81,   0xff,   0x100,
                                          0x17f,  0x180,  0x181,  0x4321, 0x7eff, 0x7f7f, 0x7f80, 0x7fff, 0x8000,
                                          0x8001, 0x807f, 0x8080, 0xabcd, 0xff7f, 0xff80, 0xffff};

// Calls check(value) for float32 values of every sign, exponent and upper half of the mantissa.
template <class Check>
void for_each_value(const Check& check) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : kLowerBits) ASSERT_NO_FATAL_FAILURE(check(rules::from_bits(upper << 16 | lower)));
  }
}

float rounded(const rules::BFloat16& value) { return rules::load<float>(value); }

// The value rounded to 16 significant bits, ties to even, in exact float64 arithmetic. Steps below the normal range stay
// 2^-141.
float to_24_bits(float value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), -126);
  const double unit = std::ldexp(1.0, exponent - 15), result = std::nearbyint(value / unit) * unit;
  return static_cast<float>(std::abs(result) >= 0x1p128 ? std::copysign(INFINITY, value) : result);
}

TEST(Remainder, OfSixteenBitsGivesBackEveryBit) {
  for_each_value([](float value) {
    const auto parts = rules::split<int16_t>(value);
    const float back = rules::join(parts.rounded, parts.remainder);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(back) && std::isnan(rounded(parts.rounded)) && parts.remainder == 0);
    } else {
      ASSERT_EQ(rules::to_bits(back), rules::to_bits(value)) << value;
    }
  });
}

TEST(Remainder, OfEightBitsGivesBackTheValueRoundedToTwentyFourBits) {
  for_each_value([](float value) {
    const auto parts = rules::split<int8_t>(value);
    const float back = rules::join(parts.rounded, parts.remainder), expected = to_24_bits(value);
    ASSERT_TRUE(std::isnan(value) ? std::isnan(back) : rules::to_bits(back) == rules::to_bits(expected))
        << value << " became " << back << " and not " << expected;
  });
}

// The middle between two bfloat16 is the only place where the remainder rounds differently, and then away from zero.
TEST(Remainder, StandsBesideTheNearestBFloat16) {
  for_each_value([](float value) {
    const auto nearest = rules::store<rules::BFloat16>(value), here = rules::split<int16_t>(value).rounded;
    const uint32_t bits = rules::to_bits(value);
    const bool is_middle = (bits & 0xffff) == 0x8000 && !std::isnan(value);
    ASSERT_EQ(here.bits, is_middle ? (bits >> 16) + 1 : nearest.bits) << value;
  });
}

// A program that writes the bfloat16 alone gets its value, within half a unit in the last place of a bfloat16.
template <class Remainder>
void expect_edits_to_stay() {
  for (const int remainder : {-128, -1, 0, 1, 127}) {
    const auto joined = [&](float edit) {
      return rules::join(rules::store<rules::BFloat16>(edit), static_cast<Remainder>(remainder));
    };
    for (const float zero : {0.0f, -0.0f}) EXPECT_LE(std::abs(joined(zero)), 0x1p-134f);
    for (const float sign : {1.0f, -1.0f}) {
      EXPECT_TRUE(std::isnan(joined(sign * NAN)));
      EXPECT_LE(std::abs(joined(sign * 1.5f) - sign * 1.5f), 0x1p-8f);
      // Below Inf stands a finite master that rounds to Inf.
      EXPECT_TRUE(std::isinf(joined(sign * INFINITY)) == (remainder >= 0));
    }
  }
}

TEST(Remainder, LeavesEditsOfTheBFloat16InPlace) {
  expect_edits_to_stay<int16_t>();
  expect_edits_to_stay<int8_t>();
}

// ---- updates ----

// Sizes next to the boundaries of vectors, packs and blocks, and of chunks.
const std::vector<int64_t> kSplitSizes = {0, 1, 7, 8, 9, 33, 511, 512, 513, 1030};
const std::vector<int64_t> kChunkSizes = {65535, 65537};

float joined(const at::Tensor& param, const at::Tensor& remainder, int64_t i) {
  const rules::BFloat16 upper{static_cast<const uint16_t*>(param.const_data_ptr())[i]};
  if (remainder.scalar_type() == at::kShort) return rules::join(upper, remainder.const_data_ptr<int16_t>()[i]);
  return rules::join(upper, remainder.const_data_ptr<int8_t>()[i]);
}

at::Tensor joined(const at::Tensor& param, const at::Tensor& remainder) {
  at::Tensor values = at::empty(param.sizes(), at::kFloat);
  for (int64_t i = 0; i < param.numel(); ++i) values.mutable_data_ptr<float>()[i] = joined(param, remainder, i);
  return values;
}

Tensors values_of(const Problem& problem) {
  Tensors values;
  for (size_t i = 0; i < problem.params.size(); ++i) values.push_back(joined(problem.params[i], problem.models[i]));
  return values;
}

void round_params(Problem& problem) {
  for (at::Tensor& param : problem.params) {
    float* const values = param.mutable_data_ptr<float>();
    for (int64_t i = 0; i < param.numel(); ++i) values[i] = to_24_bits(values[i]);
  }
}

class SplitUpdate : public ::testing::TestWithParam<Case> {
 protected:
  // Several steps of both problems. The masters and states must stay equal, bit for bit.
  void expect_bits_of_float32(at::ScalarType grad, at::ScalarType remainder, int64_t offset,
                              const std::vector<int64_t>& sizes = kSplitSizes) {
    Problem exact = make_problem(GetParam(), {grad, at::kFloat, at::kFloat, at::kDouble}, sizes, offset);
    if (remainder == at::kChar) round_params(exact);
    Problem parts = split_problem(exact, remainder, offset);
    for (int step = 0; step < 3; ++step) {
      GetParam().step(exact, clear_flag());
      if (remainder == at::kChar) round_params(exact);
      take_step(parts);
      ASSERT_TRUE(same_bytes(values_of(parts), exact.params)) << "step " << step;
      ASSERT_TRUE(same_bytes(parts.first, exact.first) && same_bytes(parts.second, exact.second)) << "step " << step;
    }
    EXPECT_TRUE(same_bytes(parts.grads, exact.grads));
  }

  virtual void take_step(Problem& parts) { GetParam().step(parts, clear_flag()); }
};

TEST_P(SplitUpdate, HasTheBitsOfFloat32Parameters) {
  for (const auto isa : available_isas()) {
    for (const auto grad : dtypes()) {
      if (grad == at::kDouble) continue;
      for (const auto remainder : {at::kShort, at::kChar}) {
        SCOPED_TRACE(std::string(kernels::cpu::name_of(isa)) + ", " + name_of(grad) + ", " + name_of(remainder));
        const UseIsa use(isa);
        expect_bits_of_float32(grad, remainder, /*offset=*/3);
      }
    }
  }
  expect_bits_of_float32(at::kBFloat16, at::kShort, /*offset=*/0, kChunkSizes);
}

TEST_P(SplitUpdate, HasTheSameBitsEverywhere) {
  const Problem exact = make_problem(GetParam(), {at::kBFloat16, at::kFloat, at::kFloat, at::kDouble}, kChunkSizes);
  for (const auto remainder : {at::kShort, at::kChar}) {
    expect_same_everywhere([&] {
      Problem parts = split_problem(exact, remainder, /*offset=*/0);
      GetParam().step(parts, clear_flag());
      return parts.all();
    });
  }
}

TEST_P(SplitUpdate, ChangesNothingIfFoundInfIsSet) {
  const Problem exact = make_problem(GetParam(), {at::kBFloat16, at::kFloat, at::kFloat, at::kDouble}, kSplitSizes);
  Problem parts = split_problem(exact, at::kShort, /*offset=*/0), before = parts.copy();
  GetParam().step(parts, at::ones({1}, at::kInt));
  EXPECT_TRUE(same_bytes(parts.all(), before.all()));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SplitUpdate, ::testing::ValuesIn(cases_with_remainders()),
                         [](const auto& test) { return test.param.name; });

// By the kernel bodies of the CUDA driver.
class DeviceSplitUpdate : public SplitUpdate {
 protected:
  void take_step(Problem& parts) override {
    const OnHostGrid on_grid(grid_);
    SplitUpdate::take_step(parts);
    EXPECT_GT(on_grid.launches(), 0);
  }

  Grid grid_;
};

TEST_P(DeviceSplitUpdate, HasTheBitsOfFloat32ParametersOnEveryGrid) {
  for (const Grid& grid : std::vector<Grid>{{1, 32, false}, {3, 96, false}, {7, 256, true}}) {
    grid_ = grid;
    for (const auto remainder : {at::kShort, at::kChar}) {
      for (const int64_t offset : {0, 3, 8}) {
        SCOPED_TRACE(name_of(remainder) + ", offset " + std::to_string(offset));
        expect_bits_of_float32(at::kBFloat16, remainder, offset);
        expect_bits_of_float32(at::kFloat, remainder, offset);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, DeviceSplitUpdate, ::testing::ValuesIn(cases_with_remainders()),
                         [](const auto& test) { return test.param.name; });

// ---- refusals ----

void adam(const Tensors& params, const Tensors& models) {
  Tensors grads, first, second;
  for (const at::Tensor& param : params) {
    for (Tensors* list : {&grads, &first, &second}) list->push_back(at::ones_like(param, at::kFloat));
  }
  kernels::multi_tensor_adam(grads, params, first, second, models, {});
}

TEST(SplitUpdates, RefuseRemaindersOfOtherDtypesAndMixedKinds) {
  const at::Tensor remainder = at::zeros({3}, at::kShort), param = at::ones({3}, at::kBFloat16);
  expect_error([&] { adam({at::ones({3})}, {remainder}); }, {"model_params[0] has dtype Short and params[0] has Float"});
  expect_error(
      [&] {
        adam({param, at::ones({3})}, {remainder, at::ones({3}, at::kBFloat16)});
      },
      {"1 of the 2 model_params are remainders"});
  expect_error([&] { adam({param}, {at::zeros({3}, at::kInt)}); }, {"model_params[0] has dtype Int"});
}

TEST(SplitUpdates, OfLambHaveAFunctionOfTheirOwn) {
  const Tensors params = {at::ones({3}, at::kBFloat16)}, values = {at::ones({3})}, remainders = {at::zeros({3}, at::kShort)};
  const kernels::LambNorms norms = {at::ones({1}), at::ones({1})};
  expect_error([&] { kernels::multi_tensor_lamb_stage_2(values, params, remainders, norms, {}); }, {"takes no remainders"});
  const auto split = [&](const Tensors& squares, const Tensors& models) {
    kernels::multi_tensor_split_lamb(values, params, {at::zeros({3})}, squares, models, {}, {});
  };
  expect_error([&] { split({at::zeros({3})}, {at::zeros({3}, at::kBFloat16)}); }, {"there are no remainders"});
  expect_error([&] { split({at::zeros({3}, at::kBFloat16)}, remainders); }, {"moments must be float32"});
}

// The calls have lists of equal dtypes and access, so the second must not be taken for a repetition of the first.
TEST(SplitUpdates, DoNotMakeRemaindersAllowedElsewhere) {
  const Tensors grads = {at::ones({3})}, params = {at::ones({3}, at::kBFloat16)}, remainders = {at::zeros({3}, at::kShort)};
  kernels::SgdSettings settings;
  settings.lr = 0.1;
  kernels::multi_tensor_sgd(grads, params, {}, remainders, settings);
  settings.momentum = 0.9;
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, remainders, {}, settings); },
               {"momentum_buffers[0] has dtype Short"});
}

}  // namespace
}  // namespace kernels_test
