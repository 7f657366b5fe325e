// Warnings and errors for Apex's interfaces from before amp::initialize (upstream:
// tests/L0/run_deprecated/test_deprecated_warning.py). `amp::initialize` itself is the recommended interface here and does not
// warn (INIT-01 concerns Apex being replaced by torch.amp).
#include <apex_cpp/amp.h>
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/warnings.h"
#include "tests/errors.h"

namespace apex::test {
namespace {

// The warnings of `action`.
template <class Action>
std::string warnings_of(Action action) {
  const CaughtWarnings caught;
  action();
  return caught.text;
}

::testing::AssertionResult names(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

TEST(DeprecatedWarning, TestAmpDoesNotWarn) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto initialize = [&] { (void)amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0)); };
  EXPECT_EQ(warnings_of(initialize), "");
  amp::reset();
}

TEST(DeprecatedWarning, TestFp16Model) {
  const auto text = warnings_of([] { fp16_utils::FP16Model<torch::nn::Linear> model(torch::nn::Linear(2, 2)); });
  EXPECT_TRUE(names(text, "FP16Model"));
  EXPECT_TRUE(names(text, "amp::initialize"));
}

TEST(DeprecatedWarning, TestFp16Optimizer) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto text = warnings_of([&] { fp16_utils::FP16_Optimizer(sgd, 1.0, false, {}, /*verbose=*/false); });
  EXPECT_TRUE(names(text, "FP16_Optimizer"));
  EXPECT_TRUE(names(text, "amp::initialize"));
}

TEST(DeprecatedWarning, TestFp16LossScaler) {
  EXPECT_TRUE(names(warnings_of([] { fp16_utils::LossScaler scaler; }), "amp::scale_loss"));
  EXPECT_TRUE(names(warnings_of([] { fp16_utils::DynamicLossScaler scaler; }), "amp::scale_loss"));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// SL-21. The same texts stand in the compiler's warnings.
TEST(OldInterface, Sl21TheErrorForInitNamesInitialize) {
  EXPECT_TRUE(names(message_of([] { (void)amp::init(); }), "amp::initialize"));
  EXPECT_TRUE(names(message_of([] { (void)amp::init(/*enabled=*/false); }), "amp::initialize"));
}

TEST(OldInterface, Sl21ErrorsForTheOldHandleNameTheReplacements) {
  const auto loss = torch::ones({});
  amp::AmpHandle handle;
  amp::OptimWrapper wrapper;
  EXPECT_TRUE(names(message_of([&] { (void)handle.scale_loss(loss, wrapper); }), "amp::scale_loss(loss, opt)"));
  EXPECT_TRUE(names(message_of([&] { (void)handle.wrap_optimizer(wrapper, /*num_loss=*/2); }), "amp::initialize"));
  EXPECT_TRUE(names(message_of([&] { (void)wrapper.scale_loss(loss); }), "amp::scale_loss(loss, opt)"));
}

#pragma GCC diagnostic pop

}  // namespace
}  // namespace apex::test
