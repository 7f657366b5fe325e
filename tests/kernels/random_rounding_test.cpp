// Rounding at random (kernels/rules/random.h): the formula, and Adam that rounds bfloat16 parameters by it.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rules/random.h"
#include "tests/kernels/host_grid.h"
#include "tests/kernels/small_problems.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
namespace rules = apex::kernels::rules;

float upper_half(float value) { return rules::from_bits(rules::to_bits(value) & 0xffff0000u); }

TEST(RoundAtRandom, KeepsWhatBFloat16Holds) {
  for (const float value : {0.0f, -0.0f, 1.0f, -3.140625f, 0x1p-133f, 3.3895313892515355e38f, INFINITY, -INFINITY}) {
    for (int64_t step = 0; step < 1000; ++step) {
      ASSERT_EQ(rules::to_bits(rules::round_at_random(value, rules::step_key(step))), rules::to_bits(value)) << value;
    }
  }
  EXPECT_EQ(rules::to_bits(rules::round_at_random(NAN, 1)), 0x7fc00000u);
}

// The share of steps that round up is a mean of n trials, within 6 standard errors of the distance from below: 6 / (2 sqrt(n)).
// A right implementation fails with a probability of 2e-9 a value.
TEST(RoundAtRandom, RoundsUpInProportionToTheDistance) {
  constexpr int kTrials = 20000;
  for (const float value : {1.0001f, 1.0039f, -0.7512f, 1e-39f, 123456.7f, -9.87e-12f}) {
    const float below = upper_half(value), above = rules::from_bits(rules::to_bits(below) + 0x10000u);
    int ups = 0;
    for (int64_t step = 1; step <= kTrials; ++step) {
      const float rounded = rules::round_at_random(value, rules::step_key(step));
      ASSERT_TRUE(rounded == below || rounded == above) << value;
      ups += rounded == above;
    }
    EXPECT_NEAR(static_cast<double>(ups) / kTrials, (double{value} - below) / (double{above} - below), 3 / std::sqrt(kTrials))
        << value;
  }
}

// Neighbouring values in one step round independently: half of the values at the middle go up, and half as the one before.
TEST(RoundAtRandom, RoundsTheValuesOfOneStepIndependently) {
  constexpr int kTrials = 20000, kSteps = (kTrials + 255) / 256, kPairs = kTrials - kSteps;
  int ups = 0, alike = 0;
  bool last = false;
  for (int i = 0; i < kTrials; ++i) {
    const float value =
        rules::from_bits(rules::to_bits(1.0f) + (static_cast<uint32_t>(i) << 16) % 0x1000000u + 0x8000u + i % 7u);
    const bool up = rules::round_at_random(value, rules::step_key(3 + i / 256)) > value;
    ups += up;
    alike += i % 256 != 0 && up == last;
    last = up;
  }
  EXPECT_NEAR(static_cast<double>(ups) / kTrials, 0.5, 3 / std::sqrt(kTrials));
  EXPECT_NEAR(static_cast<double>(alike) / kPairs, 0.5, 3 / std::sqrt(kPairs));
}

// ---- Adam ----

kernels::AdamSettings at_random(int64_t step) {
  kernels::AdamSettings settings = adam_settings(step);
  settings.rounds_params_at_random = settings.rounds_moments_at_random = true;
  return settings;
}

// A step of float32 tensors, those of bfloat16 rounded one by one.
Tensors rounded_step(const Coded& problem, int64_t step) {
  Coded exact = problem.copy();
  const auto for_each_bfloat16 = [&](const auto& visit) {
    const std::vector<std::pair<const Tensors*, Tensors*>> lists = {
        {&problem.params, &exact.params}, {&problem.means, &exact.means}, {&problem.squares, &exact.squares}};
    for (const auto& [stored, list] : lists) {
      for (size_t i = 0; i < list->size(); ++i) {
        if ((*stored)[i].scalar_type() == at::kBFloat16) visit((*list)[i]);
      }
    }
  };
  for_each_bfloat16([](at::Tensor& tensor) { tensor = tensor.to(at::kFloat); });
  adam(exact, step);
  for_each_bfloat16([&](at::Tensor& tensor) {
    float* const values = tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = rules::round_at_random(values[i], rules::step_key(step));
    tensor = tensor.to(at::kBFloat16);
  });
  return exact.all();
}

// With moments as values of `moment`, or as codes of 8 bits.
Coded problem_of(at::ScalarType grad, at::ScalarType moment) {
  Coded problem = make_coded(Kind::alone, grad);
  for (size_t i = 0; i < problem.params.size(); ++i) {
    const int64_t numel = problem.params[i].numel();
    problem.params[i] = problem.params[i].to(at::kBFloat16);
    if (moment == at::kByte) continue;
    problem.means[i] = random_values(numel, moment);
    problem.squares[i] = random_values(numel, moment).square();
  }
  return problem;
}

constexpr at::ScalarType kMoments[] = {at::kFloat, at::kBFloat16, at::kByte};

TEST(AdamAtRandom, RoundsTheStepOfFloat32TensorsEverywhere) {
  for (const auto grad : {at::kBFloat16, at::kFloat}) {
    for (const auto moment : kMoments) {
      SCOPED_TRACE(name_of(grad) + ", moments " + name_of(moment));
      const Coded problem = problem_of(grad, moment);
      const Tensors expected = rounded_step(problem, 5);
      expect_same_everywhere([&] {
        const Coded work = problem.copy();
        adam(work, at_random(5));
        EXPECT_TRUE(same_bytes(work.all(), expected));
        return work.all();
      });
    }
  }
}

TEST(DeviceAdamAtRandom, HasTheBitsOfTheCpuDriver) {
  for (const auto moment : kMoments) {
    const Coded problem = problem_of(at::kBFloat16, moment);
    const Tensors expected = rounded_step(problem, 5);
    for (const Grid& grid : std::vector<Grid>{{1, 32, false}, {7, 256, true}}) {
      const Coded work = problem.copy();
      const OnHostGrid on_grid(grid);
      adam(work, at_random(5));
      EXPECT_EQ(on_grid.launches(), 1);
      EXPECT_TRUE(same_bytes(work.all(), expected)) << name_of(moment);
    }
  }
}

TEST(AdamAtRandom, LeavesOtherParametersAsTheyAre) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    Coded problem = make_coded(Kind::alone, at::kFloat);
    for (at::Tensor& param : problem.params) param = param.to(dtype);
    const Coded work = problem.copy();
    adam(work, at_random(5));
    adam(problem, 5);
    EXPECT_TRUE(same_bytes(work.all(), problem.all()));
  }
}

}  // namespace
}  // namespace kernels_test
