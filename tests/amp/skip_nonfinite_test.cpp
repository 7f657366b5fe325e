// Inf and NaN in gradients: with a fixed loss scale they reach the weights, as in Apex. With skip_nonfinite every level checks,
// skips and reports them as with a dynamic scale.
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/optimizers.h>

#include <sstream>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

class SkipNonfinite : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void start(const amp::InitializeOptions& options, bool fused_order = false) {
    std::unique_ptr<torch::optim::Optimizer> sgd =
        std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(1.0 / 1024).momentum(0.9));
    if (fused_order) {
      const auto fused = optimizers::FusedSGDOptions(1.0 / 1024).momentum(0.9).materialize_master_grads(false);
      sgd = std::make_unique<optimizers::FusedSGD>(model->parameters(), fused);
    }
    std::tie(net, opt) = amp::initialize(model, sgd, GetParam(), options);
  }
  /// One block and one step; `value` is written into one element of one gradient.
  void train(float value = 0) {
    model->zero_grad();
    auto block = amp::scale_loss(net->forward(features()).square().sum(), opt);
    block.backward();
    if (value != 0) model->fc2->bias.mutable_grad()[1] = value;
    block.finish();
    opt->step();
  }
  /// Everything that a step may change.
  std::string bytes() { return bytes_of(*model) + bytes_of(*opt); }
  void expect_skips(float value) {
    const auto before = bytes();
    train(value);
    EXPECT_EQ(bytes(), before);
    const auto result = amp::step_result(*opt);
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.first_nonfinite, "fc2.bias");
    EXPECT_EQ(result.inf_count + result.nan_count, 1);
    EXPECT_EQ(result.loss_scale_before, result.loss_scale_after);
  }

  Mlp model;
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::Optimizer> opt;
};

amp::InitializeOptions skipping(double scale) { return quiet().skip_nonfinite(true).loss_scale(scale); }

TEST_P(SkipNonfinite, SkipsTheStepReportsItAndContinues) {
  for (const double scale : {1.0, 128.0, 0.5}) {
    for (const bool fused_order : {false, true}) {
      model = Mlp();
      start(skipping(scale), fused_order);
      train();
      expect_skips(kInf);
      expect_skips(kNan);
      EXPECT_EQ(amp::loss_scaler().skipped_in_a_row(), 2);
      EXPECT_EQ(amp::loss_scaler().loss_scale(), scale);
      ASSERT_EQ(amp::loss_scaler().history().events().size(), 2u);
      EXPECT_TRUE(amp::loss_scaler().history().events().front().skipped());
      const auto before = bytes();
      train();
      EXPECT_NE(bytes(), before);
      EXPECT_FALSE(amp::step_result(*opt).skipped);
      EXPECT_EQ(amp::loss_scaler().skipped_in_a_row(), 0);
    }
  }
}

TEST_P(SkipNonfinite, FindsNonFiniteValuesInALaterPass) {
  start(skipping(1.0));
  train();
  const auto before = bytes();
  model->zero_grad();
  for (const float value : {1.0f, kInf}) {
    auto block = amp::scale_loss(net->forward(features()).square().sum(), opt);
    block.backward();
    model->fc2->bias.mutable_grad()[0] = value;
    block.finish();
  }
  opt->step();
  EXPECT_EQ(bytes(), before);
  EXPECT_TRUE(amp::step_result(*opt).skipped);
}

TEST_P(SkipNonfinite, WithoutNonFiniteValuesChangesNoBit) {
  std::vector<std::string> results;
  for (const bool on : {false, true}) {
    torch::manual_seed(7);
    model = Mlp();
    start(quiet().loss_scale(1.0).skip_nonfinite(on));
    for (int i = 0; i < 3; ++i) train();
    results.push_back(bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(SkipNonfinite, Scale10WithoutItAStaticScaleNeverSkips) {
  for (const double scale : {1.0, 128.0}) {
    model = Mlp();
    start(quiet().loss_scale(scale));
    train(kInf);
    EXPECT_FALSE(amp::step_result(*opt).skipped) << scale;
    EXPECT_FALSE(model->fc2->bias.isfinite().all().item<bool>()) << scale;
  }
}

// No rank waits for a block that checks nothing, and such a block heeds no other rank.
TEST_P(SkipNonfinite, Scale10OnlyBlocksThatCheckExchangeOverflows) {
  int exchanges = 0;
  const auto exchange = amp::detail::begin_overflow_exchange([&exchanges](bool found_here) {
    EXPECT_FALSE(found_here);
    ++exchanges;
    return std::vector<int>{1};
  });
  for (const bool checks : {false, true}) {
    model = Mlp();
    start(quiet().loss_scale(128.0).skip_nonfinite(checks));
    train();
    EXPECT_EQ(exchanges, checks ? 1 : 0);
    EXPECT_EQ(amp::step_result(*opt).skipped, checks);
  }
  amp::detail::end_overflow_exchange(exchange);
}

TEST_P(SkipNonfinite, WarnsAfterManySkipsInARow) {
  start(skipping(1.0));
  amp::loss_scaler().set_skip_warning(2);
  CaughtWarnings warnings;
  train(kInf);
  EXPECT_FALSE(contains(warnings.text, "steps in a row"));
  train(kInf);
  EXPECT_TRUE(contains(warnings.text, "2 steps in a row overflowed"));
  EXPECT_FALSE(contains(warnings.text, "min_loss_scale"));
}

TEST_P(SkipNonfinite, IsPrintedBelowApexsBlock) {
  for (const bool on : {false, true}) {
    model = Mlp();
    std::ostringstream out;
    auto* const before = std::cout.rdbuf(out.rdbuf());
    start(amp::InitializeOptions().skip_nonfinite(on));
    std::cout.rdbuf(before);
    EXPECT_EQ(out.str().find("  skip_nonfinite         : true\n") != std::string::npos, on);
  }
}
INSTANTIATE_TEST_SUITE_P(Levels, SkipNonfinite, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

}  // namespace
}  // namespace apex::test
