#include "support.h"

namespace {

using namespace amp_C_test;

// The scale, its growth counter and the remaining hysteresis, updated step by step.
struct State {
  at::Tensor scale = scalar(1024);
  at::Tensor growth = int_scalar(0);
  at::Tensor hysteresis = int_scalar(2);

  void step(double found_inf, int interval = 3) {
    const at::Tensor returned =
        update_scale_hysteresis_cuda(scale, growth, hysteresis, scalar(found_inf), 2.0, 0.5, interval, /*hysteresis=*/2);
    EXPECT_TRUE(returned.is_same(scale));
  }
};

void expect_state(const State& state, double scale, int growth, int hysteresis) {
  EXPECT_EQ(state.scale.item<double>(), scale);
  EXPECT_EQ(state.growth.item<int>(), growth);
  EXPECT_EQ(state.hysteresis.item<int>(), hysteresis);
}

// K-HYST
TEST(UpdateScaleHysteresis, GrowsAfterAnIntervalWithoutOverflow) {
  State state;
  state.step(0);
  state.step(0);
  expect_state(state, 1024, 2, 2);
  state.step(0);
  expect_state(state, 2048, 0, 2);
}

TEST(UpdateScaleHysteresis, ShrinksOnceTheOverflowsAreUsedUp) {
  State state;
  state.step(0);
  state.step(1);
  expect_state(state, 1024, 0, 1);
  state.step(1);
  expect_state(state, 512, 0, 0);
  state.step(1);
  expect_state(state, 256, 0, -1);
  state.step(0);
  expect_state(state, 256, 1, 2);
}

TEST(UpdateScaleHysteresis, ATensorOfAnotherDtypeIsAnErrorThatNamesIt) {
  State state;
  expect_error([&] { update_scale_hysteresis_cuda(state.scale, state.growth, state.hysteresis, flag(1), 2, 0.5, 1, 1); },
               {"found_inf", "Int", "Float"});
  expect_error([&] { update_scale_hysteresis_cuda(state.scale, scalar(0), state.hysteresis, scalar(1), 2, 0.5, 1, 1); },
               {"growth_tracker", "Int"});
  expect_state(state, 1024, 0, 2);
}

TEST(UpdateScaleHysteresis, AnIntervalBeyond32BitsIsAnErrorThatNamesIt) {
  State state;
  const int64_t interval = (int64_t{1} << 32) + 1;  // cut to 32 bits it would be 1
  expect_error(
      [&] { update_scale_hysteresis_cuda(state.scale, state.growth, state.hysteresis, scalar(0), 2, 0.5, interval, 1); },
      {"growth_interval is 4294967297", "within 32 bits"});
  expect_state(state, 1024, 0, 2);
}

TEST(UpdateScaleHysteresis, AnUndefinedScaleIsAnErrorThatNamesIt) {
  const State state;
  expect_error([&] { update_scale_hysteresis_cuda(at::Tensor(), state.growth, state.hysteresis, scalar(1), 2, 0.5, 1, 1); },
               {"update_scale_hysteresis_cuda", "current_scale is undefined"});
}

}  // namespace
