// The states of gradients between passes and a step: every transition of the table, and the gradients after it.
#include <apex_cpp/amp/masters/grad_passes.h>
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

// In the fused order gradients stay in 16 bits until the step.
TEST(SumsOfPasses, OfFiniteGradientsThatOverflowSkipTheStep) {
  for (const int blocks : {1, 2, 3}) {
    torch::manual_seed(3);
    Mlp model;
    optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(1e-3).materialize_master_grads(false));
    auto [net, opt] = amp::initialize(model, adam, "O2", quiet().loss_scale("dynamic").max_loss_scale(128.0));
    const auto before = bytes_of(*model);
    for (int block = 0; block < blocks; ++block) {
      auto scaled = amp::scale_loss(net->forward(features()).square().mean(), opt);
      scaled.backward();
      model->fc1->bias.mutable_grad()[0] = 40000;
      scaled.finish();
    }
    opt.step();
    const bool overflows = blocks > 1;
    EXPECT_EQ(bytes_of(*model) == before, overflows) << blocks;
    // The third block adds to Inf, which the second has reported.
    EXPECT_EQ(amp::step_result(opt).skipped, overflows) << blocks;
    EXPECT_EQ(amp::step_result(opt).loss_scale, overflows ? 64.0 : 128.0) << blocks;
    amp::reset();
  }
}

using amp::detail::GradPasses;
using State = GradPasses::State;
using torch::Tensor;

class GradPassesTable : public AmpTest {
 protected:
  GradPassesTable() { table.add(half, master); }

  /// A backward pass with the loss scale 4: adds 4 * `grad` to the 16-bit parameter's gradient.
  void backward(float grad) {
    const Tensor made = torch::full({3}, 4 * grad, torch::kHalf);
    half.mutable_grad() = half.grad().defined() ? half.grad() + made : made;
  }
  void pass(float grad, bool fused = false) {
    passes.enter(fused, scaler);
    backward(grad);
    passes.exit(scaler);
  }
  void delayed_pass(float grad) {
    passes.enter(false, scaler);
    backward(grad);
    passes.exit_delayed(scaler);
  }
  static float value_of(const Tensor& grad) { return grad.defined() ? grad[0].item<float>() : NAN; }

  Tensor half = torch::ones({3}, torch::kHalf).requires_grad_(), master = torch::ones({3}).requires_grad_();
  amp::detail::MasterTable table;
  GradPasses passes{table};
  amp::LossScaler scaler{amp::LossScale(4.0)};
};

struct Transition {
  State from;
  const char* by;
  State to;
};
class GradPassesTransition : public GradPassesTable, public ::testing::WithParamInterface<Transition> {
 protected:
  void reach(State state) {
    if (state == State::collected) pass(1);
    if (state == State::delayed || state == State::in_later_pass) delayed_pass(1);
    if (state == State::in_pass || state == State::in_later_pass) passes.enter(false, scaler);
  }
  void apply(const std::string& event) {
    if (event == "enter") passes.enter(false, scaler);
    if (event == "exit") passes.exit(scaler);
    if (event == "exit_delayed") passes.exit_delayed(scaler);
    if (event == "abandon") passes.abandon();
    if (event == "materialize") passes.materialize();
    if (event == "end_step") passes.end_step();
    if (event == "forget") passes.forget();
  }
};

TEST_P(GradPassesTransition, MatchesTheTable) {
  reach(GetParam().from);
  ASSERT_EQ(passes.state(), GetParam().from);
  apply(GetParam().by);
  EXPECT_EQ(passes.state(), GetParam().to) << GetParam().by;
}
INSTANTIATE_TEST_SUITE_P(
    Table, GradPassesTransition,
    ::testing::Values(
        Transition{State::idle, "enter", State::in_pass}, Transition{State::idle, "materialize", State::idle},
        Transition{State::idle, "end_step", State::idle}, Transition{State::idle, "forget", State::idle},
        Transition{State::collected, "enter", State::in_pass}, Transition{State::delayed, "enter", State::in_later_pass},
        Transition{State::in_pass, "exit", State::collected}, Transition{State::in_later_pass, "exit", State::collected},
        Transition{State::in_pass, "exit_delayed", State::delayed},
        Transition{State::in_later_pass, "exit_delayed", State::delayed},
        Transition{State::in_pass, "abandon", State::collected}, Transition{State::in_later_pass, "abandon", State::delayed},
        Transition{State::collected, "materialize", State::collected}, Transition{State::collected, "end_step", State::idle},
        Transition{State::delayed, "end_step", State::delayed}, Transition{State::in_pass, "forget", State::in_pass},
        Transition{State::in_later_pass, "forget", State::in_pass}, Transition{State::delayed, "forget", State::idle},
        Transition{State::collected, "forget", State::idle}));

TEST_F(GradPassesTable, MaterializedUnscaleAccumulatesInTheMaster) {
  pass(1);
  pass(2);
  EXPECT_EQ(value_of(master.grad()), 3);
  passes.end_step();
  EXPECT_FALSE(master.grad().defined());
}

TEST_F(GradPassesTable, DelayedPassesAccumulateInTheModelUntilTheLast) {
  delayed_pass(1);
  delayed_pass(2);
  EXPECT_EQ(value_of(half.grad()), 12);
  EXPECT_FALSE(master.grad().defined());
  pass(4);
  EXPECT_EQ(value_of(master.grad()), 7);
}

TEST_F(GradPassesTable, AbandoningAPassKeepsDelayedGradients) {
  delayed_pass(1);
  passes.enter(false, scaler);
  backward(8);
  passes.abandon();
  EXPECT_EQ(value_of(half.grad()), 4);
  pass(2);
  EXPECT_EQ(value_of(master.grad()), 3);
}

TEST_F(GradPassesTable, FusedUnscaleLeavesGradientsInTheModel) {
  pass(1, /*fused=*/true);
  pass(2, /*fused=*/true);
  EXPECT_TRUE(passes.in_model());
  EXPECT_EQ(value_of(half.grad()) * passes.grad_scale(), 3);
  EXPECT_FALSE(master.grad().defined());
}

TEST_F(GradPassesTable, TheUnscalePathOfTheFirstPassHoldsUntilTheStep) {
  pass(1, /*fused=*/true);
  pass(2, /*fused=*/false);
  EXPECT_EQ(value_of(half.grad()) * passes.grad_scale(), 3);
  passes.end_step();
  pass(4, /*fused=*/false);
  EXPECT_EQ(value_of(master.grad()), 4);
}

TEST_F(GradPassesTable, MaterializedGradientsStayMaterializedUntilTheStep) {
  pass(1, /*fused=*/true);
  passes.materialize();
  EXPECT_EQ(value_of(master.grad()), 1);
  pass(2, /*fused=*/true);
  EXPECT_FALSE(passes.in_model());
  EXPECT_EQ(value_of(master.grad()), 3);
  passes.end_step();
  pass(4, /*fused=*/true);
  EXPECT_TRUE(passes.in_model());
}

TEST_F(GradPassesTable, GradientsForgottenDuringAPassDoNotComeBack) {
  delayed_pass(1);
  passes.enter(false, scaler);
  passes.forget();
  backward(2);
  passes.exit(scaler);
  EXPECT_EQ(value_of(master.grad()), 2);
}

// A record holds its parameter. The program drops the gradients itself, as with the model's zero_grad, which no handle sees.
TEST(RecordsOfUnclaimedGrads, EndWithTheBlockAfterTheGradientWasDropped) {
  const Tensor param = torch::ones({2}).requires_grad_();
  amp::detail::UnclaimedGrads unclaimed;
  const auto block = [&](const Tensor& grad) {
    unclaimed.begin_block({param});
    param.mutable_grad() = grad;
    unclaimed.end_block([](const Tensor&) { return false; });
  };
  for (int i = 0; i < 3; ++i) {
    block(torch::ones({2}));
    EXPECT_TRUE(unclaimed.first().is_same(param)) << i;
    EXPECT_EQ(param.use_count(), 2u) << i << ": here and in the newest record";
  }
  block(Tensor());
  EXPECT_EQ(param.use_count(), 1u);
}

}  // namespace
}  // namespace apex::test
