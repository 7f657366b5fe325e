// SCALE-*: the scaler alone, against a literal model of its rules.
#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <random>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using amp::LossScaler;
using torch::Tensor;

void update(LossScaler& scaler, bool overflow) {
  scaler.clear_overflow_state();
  std::vector<Tensor> in{torch::full({3}, overflow ? INFINITY : 1.0f)}, out{torch::empty({3})};
  scaler.unscale(in, out);
  EXPECT_EQ(scaler.update_scale(), overflow && scaler.dynamic());
}

TEST(LossScaler, Scale01StartsAtTheSmallerOfInitAndMax) {
  EXPECT_EQ(LossScaler("dynamic").loss_scale(), 65536.0);
  EXPECT_EQ(LossScaler("dynamic", std::nullopt, 1024.0).loss_scale(), 1024.0);
  EXPECT_EQ(LossScaler("dynamic", 1e6, 1024.0).loss_scale(), 1024.0) << "min is not applied at first";
  EXPECT_EQ(LossScaler(128.0).loss_scale(), 128.0);
}

TEST(LossScaler, Scale09DoublesAfter2000UpdatesWithoutOverflow) {  // SCALE-03: the count starts at 0
  LossScaler scaler("dynamic");
  for (int i = 0; i < 1999; ++i) scaler.update_scale();
  EXPECT_EQ(scaler.loss_scale(), 65536.0);
  EXPECT_EQ(scaler.unskipped(), 1999);
  scaler.update_scale();
  EXPECT_EQ(scaler.loss_scale(), 131072.0);
  EXPECT_EQ(scaler.unskipped(), 0);
}

// A shortened window, or a restored count beyond it: Apex compares for equality and would never grow the scale again.
TEST(LossScaler, Scale09GrowsIfTheCountIsBeyondTheWindow) {
  LossScaler shortened("dynamic"), restored("dynamic");
  for (int i = 0; i < 7; ++i) shortened.update_scale();
  shortened.set_scale_window(3);
  restored.restore(65536.0, LossScaler::kScaleWindow + 1);
  for (LossScaler* scaler : {&shortened, &restored}) {
    scaler->update_scale();
    EXPECT_EQ(scaler->loss_scale(), 131072.0);
    EXPECT_EQ(scaler->unskipped(), 0);
  }
  for (int i = 0; i < 3; ++i) shortened.update_scale();
  EXPECT_EQ(shortened.loss_scale(), 262144.0) << "the new window holds from then on";
}

TEST(LossScaler, GrowthIntervalIsTheScaleWindow) {
  LossScaler scaler("dynamic");
  EXPECT_EQ(scaler.growth_interval(), LossScaler::kScaleWindow);
  scaler.set_growth_interval(2);
  EXPECT_EQ(scaler.scale_window(), 2);
  for (int i = 0; i < 2; ++i) scaler.update_scale();
  EXPECT_EQ(scaler.loss_scale(), 131072.0);
  EXPECT_THROW(scaler.set_growth_interval(0), c10::ValueError);
}

TEST(LossScaler, Scale07OneOverflowAmongSeveralUnscalesCounts) {
  LossScaler scaler("dynamic");
  std::vector<Tensor> bad{torch::tensor({1.0f, NAN})}, good{torch::ones({2})}, out{torch::empty({2})};
  scaler.unscale(bad, out);
  scaler.unscale(good, out);
  EXPECT_TRUE(scaler.update_scale());
}

TEST(LossScaler, Scale06StashedGradientsAreNotChecked) {
  LossScaler scaler("dynamic");
  std::vector<Tensor> model{torch::full({2}, 65536.0f)}, stash{torch::tensor({INFINITY, 2.0f})}, out{torch::empty({2})};
  scaler.unscale_with_stashed(model, stash, out);
  EXPECT_FALSE(scaler.update_scale());
  EXPECT_EQ(out[0][1].item<float>(), 3.0f);
}

TEST(LossScaler, Scale10AStaticScaleNeverChanges) {
  LossScaler scaler(4.0);
  for (bool overflow : {true, false, true}) update(scaler, overflow);
  EXPECT_EQ(scaler.loss_scale(), 4.0);
  EXPECT_EQ(scaler.unskipped(), 3) << "the counter runs all the same";
}

TEST(LossScaler, Scale10AStaticScaleIgnoresAReportedOverflow) {
  LossScaler scaler(128.0);
  EXPECT_FALSE(scaler.update_scale(/*overflow=*/true));
  EXPECT_EQ(scaler.loss_scale(), 128.0);
  EXPECT_EQ(scaler.unskipped(), 1);
}

TEST(LossScaler, RestoreAndSetScaleWindowRejectInvalidValues) {
  LossScaler scaler("dynamic");
  for (double scale : {0.0, -1.0, double{INFINITY}, double{NAN}, 1e39, 1e-39, 1e-46}) {
    EXPECT_THROW(scaler.restore(scale, 0), c10::ValueError) << scale;
  }
  EXPECT_THROW(scaler.restore(1.0, -1), c10::ValueError);
  EXPECT_THROW(scaler.set_scale_window(0), c10::ValueError);
  EXPECT_EQ(scaler.loss_scale(), 65536.0);
}

struct Limits {
  std::optional<double> min;
  double max;
  int window;
};
class ScalerModel : public ::testing::TestWithParam<Limits> {};

TEST_P(ScalerModel, Scale08And09FollowsTheRulesOnRandomSequences) {
  const auto [min, max, window] = GetParam();
  LossScaler scaler("dynamic", min, max);
  scaler.set_scale_window(window);
  double scale = std::min(max, 65536.0);
  int unskipped = 0;
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    // Rarely enough that the scale stays in the range of float.
    const bool overflow = random() % (3 * window) < 2;
    update(scaler, overflow);
    if (overflow) {
      scale = min ? std::max(*min, scale / 2) : scale / 2;
      unskipped = 0;
    } else if (++unskipped == window) {
      scale = std::min(max, scale * 2);
      unskipped = 0;
    }
    ASSERT_EQ(scaler.loss_scale(), scale) << "update " << i;
    ASSERT_EQ(scaler.unskipped(), unskipped) << "update " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Limits, ScalerModel,
                         ::testing::Values(Limits{std::nullopt, 16777216.0, 4}, Limits{128.0, 4096.0, 3},
                                           Limits{65536.0, 65536.0, 1}, Limits{std::nullopt, 1e30, 7}));

}  // namespace
}  // namespace apex::test
