// update_scale_hysteresis (K-HYST).
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "kernels/optimizers.h"
#include "tests/kernels/host_grid.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

class LossScale {
 public:
  explicit LossScale(double scale, const kernels::ScaleUpdate& rule)
      : rule_(rule), tensors_{at::full({1}, scale, at::kFloat), clear_flag(), at::full({1}, rule.hysteresis, at::kInt)} {}

  void update(bool overflow) { kernels::update_scale_hysteresis(tensors_, at::full({1}, overflow ? 1 : 0, at::kInt), rule_); }

  float scale() const { return tensors_.scale.item<float>(); }
  int growth() const { return tensors_.growth_tracker.item<int>(); }
  int hysteresis() const { return tensors_.hysteresis_tracker.item<int>(); }

 private:
  kernels::ScaleUpdate rule_;
  kernels::LossScaleTensors tensors_;
};

kernels::ScaleUpdate rule(int32_t interval, int32_t hysteresis) {
  kernels::ScaleUpdate rule;
  rule.growth_interval = interval;
  rule.hysteresis = hysteresis;
  return rule;
}

TEST(LossScaleUpdate, GrowsAfterAnIntervalWithoutOverflow) {
  LossScale scale(8, rule(3, 1));
  for (const float expected : {8.0f, 8.0f, 16.0f, 16.0f, 16.0f, 32.0f}) {
    scale.update(false);
    EXPECT_EQ(scale.scale(), expected);
  }
}

TEST(LossScaleUpdate, ShrinksAtOnceWithoutHysteresis) {
  LossScale scale(8, rule(3, 1));
  scale.update(false);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 4);
  EXPECT_EQ(scale.growth(), 0);
}

TEST(LossScaleUpdate, ToleratesOverflowsUpToItsHysteresis) {
  LossScale scale(8, rule(100, 3));
  for (const float expected : {8.0f, 8.0f, 4.0f, 2.0f}) {
    scale.update(true);
    EXPECT_EQ(scale.scale(), expected);
  }
  EXPECT_EQ(scale.hysteresis(), -1);
  scale.update(false);
  EXPECT_EQ(scale.hysteresis(), 3) << "a clean step restores it";
}

TEST(LossScaleUpdate, AToleratedOverflowRestartsTheInterval) {
  LossScale scale(8, rule(2, 2));
  scale.update(false);
  scale.update(true);
  EXPECT_EQ(scale.growth(), 0);
  scale.update(false);
  EXPECT_EQ(scale.scale(), 8);
}

TEST(LossScaleUpdate, DoesNotGrowBeyondFloat32) {
  LossScale scale(0x1p127, rule(1, 1));
  scale.update(false);
  EXPECT_EQ(scale.scale(), 0x1p127f);
  EXPECT_EQ(scale.growth(), 0);
}

TEST(LossScaleUpdate, HasNoLowerBound) {
  LossScale scale(0x1p-149, rule(1, 1));
  scale.update(true);
  EXPECT_EQ(scale.scale(), 0);
}

TEST(LossScaleUpdate, FactorsNeedNotBePowersOfTwo) {
  kernels::ScaleUpdate factors = rule(1, 1);
  factors.growth_factor = 1.1f;
  factors.backoff_factor = 0.3f;
  LossScale scale(3, factors);
  scale.update(false);
  EXPECT_EQ(scale.scale(), 3.0f * 1.1f);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 3.0f * 1.1f * 0.3f);
}

TEST(LossScaleUpdate, AnInvalidTensorIsAnErrorThatNamesIt) {
  const kernels::LossScaleTensors tensors = {at::ones({1}), clear_flag(), at::ones({1})};
  expect_error([&] { kernels::update_scale_hysteresis(tensors, clear_flag(), {}); },
               {"update_scale_hysteresis", "hysteresis_tracker"});
  const kernels::LossScaleTensors elsewhere = {at::empty({1}, at::kMeta), clear_flag(), clear_flag()};
  EXPECT_THROW(kernels::update_scale_hysteresis(elsewhere, clear_flag(), {}), c10::NotImplementedError);
}

TEST(LossScaleUpdate, TensorsOfAnotherDtypeOrDeviceAreErrorsThatNameThem) {
  const at::Tensor scale = at::ones({1}), here = clear_flag();
  const at::Tensor there = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(at::kMeta));
  const auto expect_refused = [](const kernels::LossScaleTensors& tensors, const at::Tensor& found_inf,
                                 const std::string& part) {
    expect_error([&] { kernels::update_scale_hysteresis(tensors, found_inf, {}); }, {"update_scale_hysteresis", part});
  };
  expect_refused({here, here, here}, here, "scale must be a tensor of one Float");
  expect_refused({scale, scale, here}, here, "growth_tracker must be a tensor of one Int");
  expect_refused({scale, there, here}, here, "growth_tracker is on meta and scale on cpu");
  expect_refused({scale, here, there}, here, "hysteresis_tracker is on meta and scale on cpu");
  expect_refused({scale, here, here}, there, "found_inf is on meta and scale on cpu");
  EXPECT_EQ(scale.item<float>(), 1);
}

// With both drivers: autograd detects by versions that a saved tensor was written to.
TEST(LossScaleUpdate, IncreasesTheVersionsOfItsTensors) {
  for (const bool by_kernel : {false, true}) {
    std::optional<OnHostGrid> grid;
    if (by_kernel) grid.emplace();
    const Tensors written = {at::ones({1}), clear_flag(), at::ones({1}, at::kInt)};
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : written) versions.push_back(tensor._version());
    kernels::update_scale_hysteresis({written[0], written[1], written[2]}, clear_flag(), rule(3, 1));
    for (size_t i = 0; i < written.size(); ++i) EXPECT_GT(written[i]._version(), versions[i]) << by_kernel << ' ' << i;
  }
}

}  // namespace
}  // namespace kernels_test
