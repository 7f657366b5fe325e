// Apex's tests/L0/run_amp/test_basic_casts.py, TestTensorCasts and TestBannedMethods: methods and operators of tensors
// (O1-05, O1-06), and binary cross entropy (O1-40).
#include "tests/run_amp/run_amp.h"

namespace F = torch::nn::functional;

namespace apex::test::run_amp {
namespace {

class TestTensorCasts : public RunAmp {
 protected:
  torch::Tensor other() const { return torch::randn({kHidden, kHidden}, of(torch::kFloat)); }
};

TEST_P(TestTensorCasts, test_matmul_method_is_half) {
  const auto y = other();
  expect_result({[&](const auto& x) { return x.matmul(y); }, [&](const auto& x) { return y.matmul(x); }}, Result::low,
                {kHidden, kHidden});
}

// C++ has no `@`: the free function is the other form.
TEST_P(TestTensorCasts, test_matmul_op_is_half) {
  const auto y = other();
  expect_result({[&](const auto& x) { return torch::matmul(x, y); }, [&](const auto& x) { return torch::matmul(y, x); }},
                Result::low, {kHidden, kHidden});
}

TEST_P(TestTensorCasts, test_pow_method_is_float) {
  expect_result({[](const auto& x) { return x.pow(2); }}, Result::float32, {kBatch, kHidden});
}

// C++ has no `**`: the free function is the other form.
TEST_P(TestTensorCasts, test_pow_op_is_float) {
  expect_result({[](const auto& x) { return torch::pow(x, 2); }}, Result::float32, {kBatch, kHidden});
}

TEST_P(TestTensorCasts, test_cpu_is_float) {
  expect_result({[](const auto& x) { return amp::cpu(x); }}, Result::float32, {kBatch, kHidden});
  EXPECT_TRUE(amp::cpu(input({kBatch}, low())).is_cpu());
}

TEST_P(TestTensorCasts, test_sum_is_float) {
  expect_result({[](const auto& x) { return x.sum(); }, [](const auto& x) { return x.sum(1); }}, Result::float32,
                {kBatch, kHidden});
}

INSTANTIATE_TEST_SUITE_P(Devices, TestTensorCasts, ::testing::ValuesIn(all_settings()), name_of);

class TestBannedMethods : public RunAmp {
 protected:
  /// BCE as a module and as a function, of 16-bit probabilities.
  std::vector<std::function<torch::Tensor()>> bce() const {
    const auto target = torch::rand({kBatch, kHidden}, of(torch::kFloat));
    const auto x = torch::rand({kBatch, kHidden}, of(low()));
    return {[=] { return torch::nn::BCELoss()(x, target); }, [=] { return F::binary_cross_entropy(x, target); }};
  }
};

TEST_P(TestBannedMethods, test_bce_raises_by_default) {
  for (const auto& loss : bce()) EXPECT_THROW(loss(), c10::NotImplementedError);
}

TEST_P(TestBannedMethods, TheErrorNamesTheDtypeTheCauseAndTheRemedy) {
  const bool half = low() == torch::kHalf;
  std::string message;
  try {
    bce()[0]();
  } catch (const c10::NotImplementedError& error) {
    message = error.what();
  }
  for (const char* part :
       {half ? "its input is Half" : "its input is BFloat16",
        half ? "above 0.999756 is rounded to 1" : "above 0.998047 is rounded to 1", "binary_cross_entropy_with_logits"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
  }
  const auto in_low = [&](double probability) { return torch::tensor(probability).to(low()).item<float>(); };
  EXPECT_EQ(in_low(half ? 0.99976 : 0.99806), 1.0f);
  EXPECT_LT(in_low(half ? 0.99975 : 0.998), 1.0f);
}

TEST_P(TestBannedMethods, test_bce_is_float_with_allow_banned) {
  initialize(amp::InitializeOptions().allow_banned(true));
  for (const auto& loss : bce()) EXPECT_EQ(loss().scalar_type(), torch::kFloat);
}

TEST_P(TestBannedMethods, BceOfFloatsIsNotBanned) {
  const auto x = torch::rand({kBatch, kHidden}, of(torch::kFloat));
  EXPECT_EQ(F::binary_cross_entropy(x, x).scalar_type(), torch::kFloat);
}

INSTANTIATE_TEST_SUITE_P(Devices, TestBannedMethods, ::testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace apex::test::run_amp
