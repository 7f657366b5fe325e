// FP16S-01, FP16S-02: the scalers from before amp. tests/oracle replays sequences recorded from Apex.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace apex::test {
namespace {

TEST(LegacyScaler, Fp16s01NeverChanges) {
  fp16_utils::LossScaler scaler(8.0);
  const auto w = torch::ones({2}).requires_grad_();
  scaler.backward((w * 3).sum());
  EXPECT_TRUE(torch::equal(w.grad(), torch::full({2}, 24.0)));
  EXPECT_TRUE(torch::equal(scaler.scale_gradient(torch::ones({2})), torch::full({2}, 8.0)));
  w.mutable_grad().fill_(INFINITY);
  EXPECT_FALSE(scaler.has_overflow({w}));
  scaler.update_scale(true);
  EXPECT_EQ(scaler.loss_scale(), 8.0);
}

TEST(LegacyScaler, Fp16s02FindsOverflowInAnyGradient) {
  fp16_utils::DynamicLossScaler scaler(4.0);
  const auto fine = torch::ones({2}).requires_grad_(), bad = torch::ones({2}).requires_grad_(), none = torch::ones({2});
  fine.mutable_grad() = torch::ones({2});
  bad.mutable_grad() = torch::tensor({1.0f, NAN});
  EXPECT_FALSE(scaler.has_overflow({fine, none}));
  EXPECT_TRUE(scaler.has_overflow({fine, none, bad}));
}

TEST(LegacyScaler, Fp16s02HasAFloorOfOne) {
  fp16_utils::DynamicLossScaler scaler(2.0);
  for (int i = 0; i < 4; ++i) scaler.update_scale(true);
  EXPECT_EQ(scaler.loss_scale(), 1.0);
}

TEST(LegacyScaler, RejectsInvalidValues) {
  EXPECT_THROW(fp16_utils::DynamicLossScaler(0.0), c10::ValueError);
  EXPECT_THROW(fp16_utils::DynamicLossScaler(2.0, 1.0), c10::ValueError);
  EXPECT_THROW(fp16_utils::DynamicLossScaler(2.0, 2.0, 0), c10::ValueError);
}

}  // namespace
}  // namespace apex::test
