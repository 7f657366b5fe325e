// Batch norm and instance norm update their running statistics, whichever dtypes the casts produce.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr int kSteps = 5;

Tensor batch(int step) { return torch::arange(64).view({8, 8}).sin().mul(step + 1).add(3); }

/// A norm in training mode, and the same norm in FP32 without amp.
template <class Norm>
void expect_statistics_of_plain_training(Norm norm, const char* level, const amp::InitializeOptions& options,
                                         const std::vector<int64_t>& shape) {
  Norm plain(norm->options);
  for (int i = 0; i < kSteps; ++i) plain->forward(batch(i).view(shape));
  auto net = amp::initialize(norm, level, options);
  for (int i = 0; i < kSteps; ++i) net->forward(batch(i).view(shape));
  // Input and statistics have at least 8 bits: half a unit in the last place at each of five steps.
  constexpr double kTolerance = kSteps / 512.0;
  EXPECT_TRUE(torch::allclose(norm->running_mean.to(torch::kFloat), plain->running_mean, kTolerance, kTolerance)) << level;
  EXPECT_TRUE(torch::allclose(norm->running_var.to(torch::kFloat), plain->running_var, kTolerance, kTolerance)) << level;
}

struct RunningStatistics : AmpTest, ::testing::WithParamInterface<const char*> {
  bool casts_model() const { return std::string(GetParam()) != "O1" && std::string(GetParam()) != "O4"; }
};

using Names = std::vector<std::string>;

TEST_P(RunningStatistics, AreUpdatedIfTheNormIsListedInFloat32Functions) {
  auto options = quiet().float32_functions(Names{"aten::batch_norm", "aten::instance_norm"});
  if (casts_model()) options.keep_batchnorm_fp32(false);
  expect_statistics_of_plain_training(torch::nn::BatchNorm1d(8), GetParam(), options, {8, 8});
  expect_statistics_of_plain_training(
      torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(2).affine(true).track_running_stats(true)), GetParam(),
      options, {4, 2, 8});
}

/// An input that is a parameter does not count as the norm's weight.
TEST_P(RunningStatistics, AreUpdatedIfTheInputIsALeaf) {
  torch::nn::Embedding table(8, 8);
  torch::nn::BatchNorm1d norm(8), plain(8);
  torch::nn::Sequential model(table, norm);
  for (int i = 0; i < kSteps; ++i) plain->forward(table->weight.detach());
  auto net = amp::initialize(model, GetParam(), quiet());
  for (int i = 0; i < kSteps; ++i) norm->forward(table->weight);
  EXPECT_EQ(norm->running_var.scalar_type(), std::string(GetParam()) == "O3" ? torch::kHalf : torch::kFloat);
  // Inputs that are rounded to BF16, by 2^-8 at most, have a variance that is off by 2 * 2^-8 of it. O3 rounds inputs, five
  // variances and five statistics to FP16, by 2^-11 each.
  EXPECT_TRUE(torch::allclose(norm->running_var.to(torch::kFloat), plain->running_var, 0x1p-7, 0)) << norm->running_var;
  EXPECT_FALSE(torch::equal(norm->running_var.to(torch::kFloat), torch::ones({8})));
}

TEST_P(RunningStatistics, AreNotUpdatedInEvaluation) {
  torch::nn::BatchNorm1d norm(8);
  auto options = quiet().float32_functions(Names{"aten::batch_norm"});
  if (casts_model()) options.keep_batchnorm_fp32(false);
  auto net = amp::initialize(norm, GetParam(), options);
  net->eval();
  const auto version = norm->running_mean._version();
  net->forward(batch(0));
  EXPECT_EQ(norm->running_mean._version(), version);
}

INSTANTIATE_TEST_SUITE_P(Levels, RunningStatistics, ::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

struct RegisteredNorm : AmpTest {
  void TearDown() override {
    amp::unregister_function("aten::batch_norm");
    AmpTest::TearDown();
  }
};

TEST_F(RegisteredNorm, UpdatesItsStatisticsIn16Bits) {
  amp::register_half_function("aten::batch_norm");
  expect_statistics_of_plain_training(torch::nn::BatchNorm1d(8), "O1", quiet(), {8, 8});
}

}  // namespace
}  // namespace apex::test
