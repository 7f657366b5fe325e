// Reports of an overflow: the step's result, the printed line, the warning after many skips, the error at the smallest scale
// (SL-12, BUG-03, BUG-31), and the history of a loss scale.
#include <apex_cpp/optimizers.h>

#include <sstream>

#include "tests/amp/optimizers.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using amp::ScaleChange;
using torch::Tensor;

/// Backward with Inf, -Inf and NaN in the gradient of one parameter.
template <class Net, class Opt>
void poisoned_pass(Net& net, Opt& opt, size_t param, const amp::ScaleLossOptions& options = {}) {
  auto scaled = amp::scale_loss(net->forward(features()).square().mean(), opt, options);
  scaled.backward();
  auto grad = net->parameters()[param].mutable_grad().view(-1);
  grad[0] = kInf;
  grad[1] = -kInf;
  grad[2] = kNan;
}

amp::InitializeOptions dynamic() { return quiet().loss_scale("dynamic").max_loss_scale(1024.0); }

class OverflowReport : public AmpTest, public ::testing::WithParamInterface<const char*> {};

template <class Opt>
void expect_result_names_the_gradient(const char* level, Opt optimizer, Mlp model) {
  auto [net, opt] = amp::initialize(model, optimizer, level, dynamic());
  poisoned_pass(net, opt, 2);
  opt.zero_grad();  // keeps the report of the overflow before it
  opt.step();
  const auto result = amp::step_result(opt);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.first_nonfinite, "fc2.weight");
  EXPECT_EQ(result.inf_count, 2);
  EXPECT_EQ(result.nan_count, 1);
  EXPECT_FALSE(result.nonfinite_loss);
  EXPECT_EQ(result.loss_id, 0);
  EXPECT_EQ(result.loss_scale_before, 1024.0);
  EXPECT_EQ(result.loss_scale_after, 512.0);
  EXPECT_EQ(result.loss_scale, 512.0);
  train_step(net, opt, features());
  const auto after = amp::step_result(opt);
  EXPECT_FALSE(after.skipped);
  EXPECT_FALSE(after.grad);
  EXPECT_EQ(after.nonfinite_grads, 0);
  EXPECT_EQ(after.first_nonfinite, "");
  EXPECT_EQ(after.inf_count + after.nan_count, 0);
}

TEST_P(OverflowReport, StepResultNamesTheGradientItsCountsAndTheScales) {
  const auto of_torch = [](const Mlp& model) { return torch::optim::SGD(model->parameters(), 0.1); };
  const auto fused = [](const Mlp& model, bool materialize) {
    return optimizers::FusedSGD(model->parameters(), optimizers::FusedSGDOptions(0.1).materialize_master_grads(materialize));
  };
  Mlp a, b, c;
  expect_result_names_the_gradient(GetParam(), of_torch(a), a);
  expect_result_names_the_gradient(GetParam(), fused(b, true), b);
  expect_result_names_the_gradient(GetParam(), fused(c, false), c);
}
INSTANTIATE_TEST_SUITE_P(Levels, OverflowReport, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return std::string(test.param); });

class OverflowMessages : public AmpTest {};

// The gradient of fc2.weight: Inf, -Inf, NaN, and twelve values that the test knows.
TEST_F(OverflowMessages, StepResultHoldsTheGradientsStatistics) {
  for (const char* level : {"O1", "O2", "O4", "O5", "O6"}) {
    SCOPED_TRACE(level);
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, dynamic().verbosity(1));
    ::testing::internal::CaptureStdout();
    {
      auto scaled = amp::scale_loss(net->forward(features()).square().mean(), opt);
      scaled.backward();
      auto grad = net->parameters()[2].mutable_grad().view(-1);
      grad.fill_(-3.0);
      grad[0] = kInf, grad[1] = -kInf, grad[2] = kNan;
      grad[3] = 1024.0, grad[4] = 0.0, grad[5] = grad[6] = 0x1p-20;
      net->parameters()[3].mutable_grad()[0] = kNan;
    }
    opt.step();
    const std::string line = ::testing::internal::GetCapturedStdout();
    const auto result = amp::step_result(opt);
    EXPECT_EQ(result.nonfinite_grads, 2);
    ASSERT_TRUE(result.grad);
    EXPECT_EQ(result.grad->name, "fc2.weight");
    EXPECT_EQ(result.grad->numel, 15);
    EXPECT_EQ(result.grad->inf, 2);
    EXPECT_EQ(result.grad->nan, 1);
    EXPECT_EQ(result.grad->zeros, 1);
    // Gradients of FP32 parameters were unscaled, by 1024.
    const bool has_masters = std::string(level) == "O2" || std::string(level) >= "O5";
    EXPECT_EQ(result.grad->abs_max, has_masters ? 1024.0 : 1.0);
    EXPECT_EQ(result.grad->exponents.at(has_masters ? -20 : -30), 2);
    const std::string reach = "the first of 2 such gradients; its finite values reach ";
    // Two of eleven values are subnormal in FP16.
    const std::string values = std::string(level) == "O2"   ? "1024, and 18.1818 % of its nonzero values are subnormal in Half."
                               : std::string(level) >= "O5" ? "1024, and 0 % of its nonzero values are subnormal in BFloat16."
                                                            : "1. ";
    EXPECT_TRUE(contains(line, reach + values)) << line;
  }
}

TEST_F(OverflowMessages, AGradientWithoutFiniteValuesIsReportedAsSuch) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", dynamic().verbosity(1));
  ::testing::internal::CaptureStdout();
  {
    auto scaled = amp::scale_loss(net->forward(features()).square().mean(), opt);
    scaled.backward();
    net->parameters()[2].mutable_grad().fill_(kNan);
  }
  opt.step();
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStdout(), "'fc2.weight'; none of its values is finite"));
  EXPECT_EQ(amp::step_result(opt).nonfinite_grads, 1);
}

// The program set this gradient before the block and the pass adds nothing to it, so it is not reported as the overflow.
TEST_F(OverflowMessages, AnUnsupportedGradientTypeDoesNotHideTheSkip) {
  const std::vector<Tensor> strange{torch::full({6}, kInf).to(torch::kComplexFloat), torch::ones({6}).to(torch::kFloat8_e5m2),
                                    torch::full({6}, kInf).to_sparse()};
  for (const Tensor& own : strange) {
    for (const bool materialize : {true, false}) {
      SCOPED_TRACE(::testing::Message() << own.scalar_type() << ", " << materialize);
      Mlp model;
      optimizers::FusedSGD optimizer(model->parameters(),
                                     optimizers::FusedSGDOptions(0.1).materialize_master_grads(materialize));
      auto [net, opt] = amp::initialize(model, optimizer, "O1", dynamic());
      net->parameters()[0].mutable_grad() = own;
      {
        auto scaled = amp::scale_loss(net->fc2->forward(torch::randn({4, 5})).square().mean(), opt);
        scaled.backward();
        net->parameters()[2].mutable_grad().view(-1)[0] = kInf;
      }
      opt.step();
      EXPECT_TRUE(amp::step_result(opt).skipped);
      EXPECT_EQ(amp::step_result(opt).first_nonfinite, "fc2.weight");
      EXPECT_EQ(amp::step_result(opt).nonfinite_grads, 1);
    }
  }
}

TEST_F(OverflowMessages, ASkipCausedByAnotherOptimizerNamesThatOptimizersParameter) {
  Mlp a, b;
  torch::optim::SGD sgd_a(a->parameters(), 0.1), sgd_b(b->parameters(), 0.1);
  auto [nets, opts] = amp::initialize(std::tie(a, b), std::tie(sgd_a, sgd_b), "O2", dynamic());
  auto& [net_a, net_b] = nets;
  auto& [opt_a, opt_b] = opts;
  {
    auto scaled = amp::scale_loss((net_a->forward(features()) + net_b->forward(features())).mean(), {opt_a, opt_b});
    scaled.backward();
    net_b->parameters()[1].mutable_grad()[1] = kNan;
  }
  opt_a.step();
  opt_b.step();
  for (auto result : {amp::step_result(opt_a), amp::step_result(opt_b)}) {
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.first_nonfinite, "model1.fc1.bias");
    EXPECT_EQ(result.nan_count, 1);
  }
}

TEST_F(OverflowMessages, TheFirstOverflowBeforeAStepIsReported) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", dynamic().num_losses(2));
  poisoned_pass(net, opt, 2, 1);
  poisoned_pass(net, opt, 0, 1);
  poisoned_pass(net, opt, 0, 0);
  EXPECT_FALSE(amp::step_result(opt).skipped) << "no step yet";
  opt.step();
  const auto result = amp::step_result(opt);
  EXPECT_EQ(result.loss_id, 1);
  EXPECT_EQ(result.first_nonfinite, "fc2.weight");
  EXPECT_EQ(result.loss_scale_before, 1024.0);
  EXPECT_EQ(result.loss_scale_after, 256.0) << "SL-12: the scale at the time of the step";
}

TEST_F(OverflowMessages, ANonFiniteLossIsReported) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().loss_scale("dynamic"));
  ::testing::internal::CaptureStdout();
  amp::scale_loss(net->forward(features()).sum() * kNan, opt).backward();
  opt.step();
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStdout(), "loss that is not finite"));
  EXPECT_TRUE(amp::step_result(opt).nonfinite_loss);
}

TEST_F(OverflowMessages, Sl12ThePrintedLineNamesGradientCountsScalerAndScales) {
  const auto printed_with = [](const amp::InitializeOptions& options) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions(options).loss_scale("dynamic"));
    ::testing::internal::CaptureStdout();
    poisoned_pass(net, opt, 2);
    opt.step();
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string line = printed_with({});
  EXPECT_TRUE(contains(line, "2 Inf and 1 NaN among the 15 values of the gradient of 'fc2.weight'"));
  EXPECT_TRUE(contains(line, "loss scaler 0"));
  EXPECT_TRUE(contains(line, "was at loss scale 65536 and is at 32768"));
  EXPECT_EQ(printed_with(quiet()), "");
}

TEST_F(OverflowMessages, AFiniteGradientThatUnscalesToInfIsReportedFromTheMaster) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", dynamic());
  amp::loss_scaler().restore(std::ldexp(1.0, -120), 0);
  {
    auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
    scaled.backward();
    net->parameters()[3].mutable_grad()[1] = 60000.0;
  }
  opt.step();
  EXPECT_EQ(amp::step_result(opt).first_nonfinite, "fc2.bias");
  EXPECT_EQ(amp::step_result(opt).inf_count, 1);
}

// The step of a fused optimizer unscales: no tensor has the unscaled gradient.
TEST_F(OverflowMessages, AFiniteGradientThatUnscalesToInfInTheStepIsReportedAsSuch) {
  Mlp model;
  optimizers::FusedSGD optimizer(model->parameters(), optimizers::FusedSGDOptions(0.1).materialize_master_grads(false));
  auto [net, opt] = amp::initialize(model, optimizer, "O2", dynamic());
  amp::loss_scaler().restore(std::ldexp(1.0, -120), 0);
  amp::loss_scaler().set_skip_warning(1);
  CaughtWarnings warnings;
  {
    auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
    scaled.backward();
    net->parameters()[3].mutable_grad()[1] = 60000.0;
  }
  EXPECT_TRUE(contains(warnings.text, "First found: every gradient is finite, but its unscaled value is not."));
}

TEST_F(OverflowMessages, ManySkipsInARowCauseOneWarning) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", dynamic());
  EXPECT_EQ(amp::loss_scaler().skip_warning(), 10);
  amp::loss_scaler().set_skip_warning(3);
  const auto warnings_of = [&, &net = net, &opt = opt](int skips) {
    CaughtWarnings warnings;
    for (int i = 0; i < skips; ++i) {
      opt.zero_grad();
      poisoned_pass(net, opt, 0);
      opt.step();
    }
    return warnings.text;
  };
  EXPECT_EQ(warnings_of(2), "");
  const std::string text = warnings_of(1);
  for (const char* part : {"3 steps in a row", "loss scaler 0", "1024 -> 512 -> 256 -> 128", "'fc1.weight'", "learning rate",
                           "zero_grad", "min_loss_scale"}) {
    EXPECT_TRUE(contains(text, part));
  }
  EXPECT_EQ(warnings_of(5), "") << "once in a row";
  train_step(net, opt, features(), false);
  EXPECT_NE(warnings_of(3), "") << "a clean pass starts a new row";
  amp::loss_scaler().set_skip_warning(0);
  train_step(net, opt, features(), false);
  EXPECT_EQ(warnings_of(12), "");
  EXPECT_THROW(amp::loss_scaler().set_skip_warning(-1), c10::ValueError);
}

std::string warned_of(const char* level, const amp::InitializeOptions& options, double factor) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level, options);
  amp::loss_scaler().set_skip_warning(1);
  CaughtWarnings warnings;
  {
    auto scaled = amp::scale_loss(net->forward(features()).sum() * factor, opt);
    scaled.backward();
    net->parameters()[0].mutable_grad().view(-1)[0] = kInf;
  }
  return warnings.text;
}

TEST_F(OverflowMessages, TheWarningExplainsFp16sRangeAtLevelsThatComputeInFp16) {
  for (const char* level : {"O1", "O2", "O3"}) {
    const std::string text = warned_of(level, dynamic(), kInf);
    EXPECT_TRUE(contains(text, "The loss itself is Inf or NaN")) << level;
    EXPECT_TRUE(contains(text, "Activations above 65504 are Inf in FP16")) << level << text;
    EXPECT_TRUE(contains(text, "O4 and O5")) << level << text;
    EXPECT_FALSE(contains(warned_of(level, dynamic(), 1), "65504")) << level << " with a finite loss";
  }
  for (const char* level : {"O0", "O4", "O5", "O6"}) {
    const std::string text = warned_of(level, dynamic(), kInf);
    EXPECT_TRUE(contains(text, "The loss itself is Inf or NaN")) << level;
    EXPECT_FALSE(contains(text, "FP16")) << level << text;
  }
}

TEST_F(OverflowMessages, TheWarningMentionsAFixedLossScale) {
  const auto fixed_at = [](double scale) { return quiet().loss_scale(scale).skip_nonfinite(true); };
  EXPECT_TRUE(contains(warned_of("O2", fixed_at(1 << 24), 1), "The loss scale is fixed: try a lower one, or \"dynamic\""));
  EXPECT_FALSE(contains(warned_of("O2", fixed_at(1), 1), "loss scale is fixed"));
  EXPECT_FALSE(contains(warned_of("O2", dynamic(), 1), "loss scale is fixed"));
}

template <class Opt>
void expect_error_at_the_last_scale(const char* level, Opt optimizer, Mlp model) {
  auto [net, opt] = amp::initialize(model, optimizer, level, dynamic());
  train_step(net, opt, features());
  train_step(net, opt, features(), false);  // leaves gradients to which the next pass adds
  amp::loss_scaler().restore(2e-38, 7);
  const auto model_before = bytes_of(*model);
  const auto optimizer_before = bytes_of(opt);
  auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
  scaled.backward();
  net->parameters()[3].mutable_grad()[1] = kNan;
  const std::string text = message_of([&] { scaled.finish(); });
  for (const char* part : {"min_loss_scale", "1024 -> 2e-38", "0 Inf and 1 NaN", "'fc2.bias'", "the loss is finite"}) {
    EXPECT_TRUE(contains(text, part)) << level;
  }
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 2e-38);
  EXPECT_EQ(amp::loss_scaler().unskipped(), 7);
  EXPECT_EQ(bytes_of(*model), model_before) << level;
  EXPECT_EQ(bytes_of(opt), optimizer_before) << level;
  // The failed pass leaves nothing for a later one.
  opt.step();
  EXPECT_EQ(bytes_of(*model), model_before) << level;
  amp::loss_scaler().restore(128.0, 0);
  train_step(net, opt, features());
  EXPECT_NE(bytes_of(*model), model_before) << level;
  for (const auto& param : model->parameters()) EXPECT_TRUE(torch::isfinite(param).all().item<bool>()) << level;
}

TEST_F(OverflowMessages, Bug03TheErrorAtTheSmallestScaleNamesHistoryAndGradientAndCleansUp) {
  for (const char* level : {"O0", "O2", "O3"}) {
    Mlp a, b;
    expect_error_at_the_last_scale(level, torch::optim::SGD(a->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)), a);
    expect_error_at_the_last_scale(
        level, optimizers::FusedSGD(b->parameters(), optimizers::FusedSGDOptions(0.1).materialize_master_grads(false)), b);
  }
}

// ---- the history ----

std::string csv_of(const amp::ScaleHistory& history) {
  std::ostringstream out;
  out.precision(2);  // has no effect
  history.write_csv(out);
  return out.str();
}

TEST(ScaleHistory, RecordsOverflowGrowthAndRestoreWithTheUpdateNumber) {
  amp::LossScaler scaler("dynamic", 16384.0, 65536.0);
  scaler.set_scale_window(2);
  for (bool overflow : {true, false, false, false, false, true, true, true}) scaler.update_scale(overflow);
  scaler.restore(4096.0, 1);
  EXPECT_EQ(scaler.updates(), 8);
  EXPECT_EQ(csv_of(scaler.history()),
            "update,scale_before,scale_after,skipped,reason\n"
            "1,65536,32768,1,overflow\n"
            "3,32768,65536,0,growth\n"
            "5,65536,65536,0,growth\n"
            "6,65536,32768,1,overflow\n"
            "7,32768,16384,1,overflow\n"
            "8,16384,16384,1,overflow\n"
            "8,16384,4096,0,restored\n");
  EXPECT_EQ(scaler.describe_history(), "65536 -> 32768 -> 65536 -> 65536 -> 32768 -> 16384 -> 16384 -> 4096");
}

TEST(ScaleHistory, KeepsTheNewestEventsUpToItsCapacity) {
  amp::LossScaler scaler("dynamic", 1.0);
  for (int i = 0; i < 1200; ++i) scaler.update_scale(true);
  EXPECT_EQ(scaler.history().events().size(), amp::ScaleHistory::kCapacity);
  EXPECT_EQ(scaler.history().events().front().update, 201);
  scaler.history().set_capacity(3);
  scaler.update_scale(true);
  ASSERT_EQ(scaler.history().events().size(), 3u);
  EXPECT_EQ(scaler.history().events().back().update, 1201);
  scaler.history().clear();
  EXPECT_EQ(csv_of(scaler.history()), "update,scale_before,scale_after,skipped,reason\n");
  scaler.history().set_capacity(0);
  scaler.update_scale(true);
  EXPECT_TRUE(scaler.history().events().empty());
}

TEST_F(OverflowMessages, ResetForgetsTheHistory) {
  for (int i = 0; i < 2; ++i) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", dynamic());
    EXPECT_TRUE(amp::loss_scaler().history().events().empty());
    poisoned_pass(net, opt, 0);
    ASSERT_EQ(amp::loss_scaler().history().events().size(), 1u);
    EXPECT_EQ(amp::loss_scaler().history().events()[0].change, ScaleChange::overflow);
    amp::reset();
  }
}

}  // namespace
}  // namespace apex::test
