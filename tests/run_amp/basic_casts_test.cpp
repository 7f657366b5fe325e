// Apex's tests/L0/run_amp/test_basic_casts.py, TestBasicCasts: the dtype of a module's and a function's result (O1-05, O1-41),
// and the input's gradient in the input's dtype (O1-06).
#include "tests/run_amp/run_amp.h"

namespace F = torch::nn::functional;

namespace apex::test::run_amp {
namespace {

class TestBasicCasts : public RunAmp {};

TEST_P(TestBasicCasts, test_linear_is_half) {
  auto module = on_device(torch::nn::Linear(kHidden, kHidden));
  expect_result(
      {[&](const auto& x) { return module(x); }, [&](const auto& x) { return F::linear(x, module->weight, module->bias); }},
      Result::low, {kBatch, kHidden});
}

TEST_P(TestBasicCasts, test_conv2d_is_half) {
  auto module = on_device(torch::nn::Conv2d(kChannels, kChannels, kKernel));
  const auto options = F::Conv2dFuncOptions().bias(module->bias);
  expect_result(
      {[&](const auto& x) { return module(x); }, [&](const auto& x) { return F::conv2d(x, module->weight, options); }},
      Result::low, {kBatch, kChannels, kHidden, kHidden});
}

TEST_P(TestBasicCasts, test_softmax_is_float) {
  torch::nn::Softmax module(1);
  expect_result({[&](const auto& x) { return module(x); }, [](const auto& x) { return F::softmax(x, 1); }}, Result::float32,
                {kBatch, kHidden});
}

TEST_P(TestBasicCasts, test_group_norm_is_float) {
  auto module = on_device(torch::nn::GroupNorm(4, kChannels));
  const auto options = F::GroupNormFuncOptions(4).weight(module->weight).bias(module->bias);
  expect_result({[&](const auto& x) { return module(x); }, [&](const auto& x) { return F::group_norm(x, options); }},
                Result::float32, {kBatch, kChannels, kHidden, kHidden});
}

TEST_P(TestBasicCasts, test_mse_loss_is_float) {
  const auto target = torch::randn({kBatch, kHidden}, of(torch::kFloat));
  torch::nn::MSELoss module;
  expect_result({[&](const auto& x) { return module(x, target); }, [&](const auto& x) { return F::mse_loss(x, target); }},
                Result::float32, {kBatch, kHidden});
}

TEST_P(TestBasicCasts, test_relu_is_match) {
  torch::nn::ReLU module;
  expect_result({[&](const auto& x) { return module(x); }, [](const auto& x) { return F::relu(x); }}, Result::as_input,
                {kBatch, kHidden});
}

TEST_P(TestBasicCasts, test_batch_norm_is_match) {
  auto module = on_device(torch::nn::BatchNorm2d(kChannels));
  const auto options = F::BatchNormFuncOptions().weight(module->weight).bias(module->bias).training(true);
  expect_result({[&](const auto& x) { return module(x); },
                 [&](const auto& x) { return F::batch_norm(x, module->running_mean, module->running_var, options); }},
                Result::as_input, {kBatch, kChannels, kHidden, kHidden});
}

INSTANTIATE_TEST_SUITE_P(Devices, TestBasicCasts, ::testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace apex::test::run_amp
