// Upstream's test_multiple_models_optimizers_losses and test_fused_sgd by behaviour, over more: 1 to 3 models and losses, 1 or
// 2 optimizers, one scaler or one for each loss, O0 to O5, with an overflow anywhere (SL-07..12, SL-16, BWD-01..30, OPT-05,
// OPT-06).
#include "tests/combinations/support.h"

namespace apex::test::combinations {
namespace {

class Combinations : public AmpTest, public ::testing::WithParamInterface<Case> {
 protected:
  const Kind& kind() const { return std::get<0>(GetParam()); }

  /// Every shape, with zeroing in its forms by turns.
  template <class Visit>
  void for_each_shape(const Visit& visit) const {
    int turn = 0;
    for (int models = 1; models <= 3; ++models) {
      for (int losses = 1; losses <= 3; ++losses) {
        for (int optimizers = 1; optimizers <= std::min(2, models); ++optimizers) {
          for (const bool own_scalers : {false, true}) {
            Plan plan;
            plan.level = std::get<1>(GetParam());
            plan.models = models;
            plan.losses = losses;
            plan.optimizers = optimizers;
            plan.own_scalers = own_scalers;
            plan.zero = static_cast<Zero>(turn++ % 4);
            visit(plan);
          }
        }
      }
    }
  }
};

class OverflowCombinations : public Combinations {
 protected:
  /// An overflow in every loss and model, alternating between the two parameters.
  template <class Visit>
  void for_each_overflow(Plan plan, const Visit& visit) const {
    for (int loss = 0; loss < plan.losses; ++loss) {
      for (int model = 0; model < plan.models; ++model) {
        if (!plan.uses(loss, model)) continue;
        plan.inject = Inject{(loss + model) % 2, loss, model, (loss + model + plan.optimizers) % 2 == 0};
        visit(plan);
      }
    }
  }
};

TEST_P(Combinations, WithoutOverflow) {
  for_each_shape([&](const Plan& plan) { expect_trains_as_by_hand(kind(), plan); });
}

TEST_P(OverflowCombinations, TrainAsByHand) {
  for_each_shape(
      [&](const Plan& shape) { for_each_overflow(shape, [&](const Plan& plan) { expect_trains_as_by_hand(kind(), plan); }); });
}

TEST_P(OverflowCombinations, TrainAsByHandWithDelayedUnscaling) {
  for_each_shape([&](Plan shape) {
    if (shape.losses == 1) return;
    shape.delay_unscale = true;
    expect_trains_as_by_hand(kind(), shape);
    for_each_overflow(shape, [&](const Plan& plan) { expect_trains_as_by_hand(kind(), plan); });
  });
}

TEST_P(Combinations, WithDelayedOverflowChecks) {
  for_each_shape([&](Plan plan) {
    if (plan.losses == 1) return;
    plan.delay_overflow_check = true;
    expect_trains_as_by_hand(kind(), plan);
    // In each of the three steps the last pass alone is counted.
    const int64_t last = plan.own_scalers ? plan.losses - 1 : 0;
    for (int64_t i = 0; i < amp::num_loss_scalers(); ++i) {
      EXPECT_EQ(amp::loss_scaler(i).updates(), i == last ? 3 : 0) << plan.describe() << ", scaler " << i;
    }
  });
}

TEST_P(Combinations, WithClippingOfMasterParams) {
  for_each_shape([&](Plan plan) {
    plan.clip = (plan.models + plan.losses) % 2 == 0 ? Clip::value : Clip::norm;
    expect_trains_as_by_hand(kind(), plan);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Combinations, ::testing::Combine(::testing::ValuesIn(kinds()), kLevels), name_of);
INSTANTIATE_TEST_SUITE_P(All, OverflowCombinations,
                         ::testing::Combine(::testing::Values(kinds()[0], kinds()[2], kinds()[3]), kLevels), name_of);

}  // namespace
}  // namespace apex::test::combinations
