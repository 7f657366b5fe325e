// Apex's tests/L0/run_amp/test_promotion.py: functions of two tensors (O1-07), sequences (O1-08), and in-place functions
// (O1-09, O1-30).
#include "tests/run_amp/run_amp.h"

namespace apex::test::run_amp {
namespace {

class TestPromotion : public RunAmp {
 protected:
  using BinaryFunction = std::function<torch::Tensor(torch::Tensor, const torch::Tensor&)>;
  enum class Writes { nothing, first_argument };

  void expect_promotion(const std::vector<BinaryFunction>& functions, Writes writes) const {
    for (const auto& function : functions) {
      for (const auto x_type : dtypes()) {
        for (const auto y_type : dtypes()) expect_promotion(function, x_type, y_type, writes);
      }
    }
  }

  void expect_promotion(const BinaryFunction& function, c10::ScalarType x_type, c10::ScalarType y_type, Writes writes) const {
    SCOPED_TRACE(testing::Message() << x_type << " and " << y_type);
    const bool in_place = writes == Writes::first_argument;
    const auto leaf = input({kBatch}, x_type);
    const auto x = in_place ? leaf.clone() : leaf;  // a leaf may not be written
    const auto y = torch::randn({kBatch}, of(y_type));
    const auto result = function(x, y);
    const auto widest = x_type == y_type ? x_type : torch::kFloat;
    EXPECT_EQ(result.scalar_type(), in_place ? x_type : widest);
    EXPECT_EQ(result.is_same(x), in_place);
    {
      const torch::NoGradGuard no_grad;
      const amp::disable_casts off;
      expect_close(result, function(leaf.to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true), y.to(torch::kFloat)));
    }
    result.to(torch::kFloat).sum().backward();
    EXPECT_EQ(leaf.grad().scalar_type(), x_type);
  }
};

TEST_P(TestPromotion, test_atan2_matches_widest) {
  expect_promotion({[](const auto& x, const auto& y) { return torch::atan2(x, y); },
                    [](const auto& x, const auto& y) { return x.atan2(y); }},
                   Writes::nothing);
}

TEST_P(TestPromotion, test_mul_matches_widest) {
  expect_promotion({[](const auto& x, const auto& y) { return torch::mul(x, y); },
                    [](const auto& x, const auto& y) { return x.mul(y); }, [](const auto& x, const auto& y) { return x * y; }},
                   Writes::nothing);
}

TEST_P(TestPromotion, test_cat_matches_widest) {
  std::vector<torch::Tensor> several;
  for (int i = 0; i < 5; ++i) several.push_back(torch::randn({kBatch}, of(low())));
  for (const auto dtype : dtypes()) {
    auto all = several;
    all.push_back(torch::randn({kBatch}, of(dtype)));
    const auto result = torch::cat(all);
    EXPECT_EQ(result.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(result.slice(0, 0, kBatch).to(low()), all.front()));
    EXPECT_TRUE(torch::equal(result.slice(0, -kBatch), all.back()));
  }
}

TEST_P(TestPromotion, test_inplace_exp_is_error_for_half) {
  auto x = torch::zeros({kBatch}, of(torch::kFloat));
  x.exp_();
  EXPECT_EQ(x.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(x, torch::ones_like(x)));
  auto low_x = torch::zeros({kBatch}, of(low()));
  EXPECT_THROW(low_x.exp_(), c10::NotImplementedError);
  EXPECT_TRUE(torch::equal(low_x, torch::zeros_like(low_x)));
}

TEST_P(TestPromotion, test_inplace_add_matches_self) {
  expect_promotion({[](auto x, const auto& y) { return x.add_(y); }, [](auto x, const auto& y) { return x += y; }},
                   Writes::first_argument);
}

INSTANTIATE_TEST_SUITE_P(Devices, TestPromotion, ::testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace apex::test::run_amp
