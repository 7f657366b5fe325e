// scale_loss blocks whose scaled loss is not used, and gradients of optimizers that are not in the block's list (SL-15).
#include <apex_cpp/optimizers.h>
#include <apex_cpp/torch_compat/autograd.h>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// Levels at which a block has work to do: gradients to unscale, or masters that need them.
class ScaledLossUse : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    std::unique_ptr<torch::optim::Optimizer> sgd = std::make_unique<torch::optim::SGD>(model->parameters(), 1.0 / 1024);
    std::tie(net, opt) = amp::initialize(model, sgd, GetParam(), quiet().loss_scale(128.0));
  }
  Tensor loss() { return net->forward(features()).square().sum(); }
  /// The block around `use` ends with this error; its gradients are dropped, and the next block and step work.
  template <class Use>
  void expect_refused(const std::string& what, Use&& use) {
    const Tensor given = loss();
    auto block = amp::scale_loss(given, opt);
    use(given, block);
    const auto error = message_of([&] { block.finish(); });
    EXPECT_TRUE(contains(error, what));
    EXPECT_TRUE(contains(error, "scaled_loss.backward()"));
    for (const Tensor& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
    expect_trains();
  }
  void expect_trains() {
    const auto before = bytes_of(*model);
    { amp::scale_loss(loss(), opt).backward(); }
    opt->step();
    EXPECT_NE(bytes_of(*model), before);
  }
  /// The block around `use` ends without an error.
  template <class Use>
  void expect_accepted(Use&& use) {
    const Tensor given = loss();
    auto block = amp::scale_loss(given, opt);
    use(given, block);
    block.finish();
    opt->step();
  }

  Mlp model;
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::Optimizer> opt;
};

TEST_P(ScaledLossUse, BackwardOnTheUnscaledLossIsRefused) {
  expect_refused("and not the scaled loss", [](const Tensor& given, auto&) { given.backward(); });
}

TEST_P(ScaledLossUse, ABlockWithoutABackwardPassIsRefused) {
  expect_refused("without a backward pass", [](const Tensor&, auto&) {});
}

TEST_P(ScaledLossUse, AnErrorAtTheClosingBraceIsThrownByTheNextStep) {
  const Tensor given = loss();
  {
    auto scaled_loss = amp::scale_loss(given, opt);
    given.backward();
  }
  EXPECT_TRUE(contains(message_of([&] { opt->step(); }), "and not the scaled loss"));
  expect_trains();
}

// As in `const torch::Tensor& scaled_loss = amp::scale_loss(loss, opt);`, whose block ends at once.
TEST_P(ScaledLossUse, AReferenceToABlockThatHasEndedIsATensor) {
  const Tensor expected = loss().to(torch::kFloat) * amp::loss_scaler().loss_scale();
  const Tensor& scaled = amp::scale_loss(loss(), opt);
  EXPECT_TRUE(scaled.equal(expected));
  EXPECT_TRUE(contains(message_of([&] { opt->step(); }), "without a backward pass"));
  const Tensor& named = amp::scale_loss(loss(), opt).tensor();
  EXPECT_TRUE(named.equal(expected));
  EXPECT_TRUE(contains(message_of([&] { opt->step(); }), "without a backward pass"));
  const auto differentiate = [](const Tensor& given) { given.backward(); };
  differentiate(amp::scale_loss(loss(), opt));  // a block within one expression
  const auto before = bytes_of(*model);
  opt->step();
  EXPECT_NE(bytes_of(*model), before);
}

TEST_P(ScaledLossUse, EveryWayToDifferentiateTheScaledLossIsAccepted) {
  expect_accepted([](const Tensor&, auto& block) { block.backward({}, /*retain_graph=*/true), block.backward(); });
  expect_accepted([](const Tensor&, auto& block) { (block.tensor() / 4).backward(); });
  expect_accepted([](const Tensor&, auto& block) { torch::autograd::backward({block.tensor()}, {}); });
  expect_accepted([](const Tensor& given, auto& block) { block.backward({}, /*retain_graph=*/true), given.backward(); });
  expect_accepted([&](const Tensor&, auto& block) {  // a penalty, written by hand
    const auto grads = torch::autograd::grad({block.tensor()}, {model->fc1->weight}, {}, std::nullopt, /*create_graph=*/true);
    grads[0].square().sum().backward();
  });
}

TEST_P(ScaledLossUse, GradientsWrittenByHandAreAccepted) {
  expect_accepted([&](const Tensor&, auto&) {
    for (const Tensor& p : model->parameters()) p.mutable_grad() = torch::ones_like(p);
  });
  const Tensor constant = torch::ones({});
  auto block = amp::scale_loss(constant, opt);
  block.finish();  // nothing to differentiate
}

// As in A3C: the loss is of a copy of the model, whose gradients the program copies.
TEST_P(ScaledLossUse, AGradientThatLandsInACopyOfTheModelIsReported) {
  Mlp copy;
  for (const bool in_copy : {true, false}) {
    CaughtWarnings warnings;
    amp::scale_loss(in_copy ? copy->forward(features()).square().sum() : loss(), opt).backward();
    EXPECT_EQ(contains(warnings.text, "such as a copy of the model, carry the loss scale, now 128"), in_copy) << warnings.text;
    opt->zero_grad();
  }
}

TEST_P(ScaledLossUse, TheLossMayBeUsedAfterTheBlock) {
  const Tensor given = loss();
  {
    auto block = amp::scale_loss(given, opt);
    block.backward({}, /*retain_graph=*/true);
    block.finish();
    given.backward();
    EXPECT_EQ(message_of([&] { block.finish(); }), "");
  }
  model->zero_grad();
  expect_trains();
}

// LibTorch's backward does not need grad mode either.
TEST_P(ScaledLossUse, ABlockMayBeWithinANoGradGuard) {
  const Tensor given = loss();
  const auto before = bytes_of(*model);
  const torch::NoGradGuard no_grad;
  auto block = amp::scale_loss(given, opt);
  EXPECT_EQ(message_of([&] { block.backward(), block.finish(); }), "");
  opt->step();
  EXPECT_NE(bytes_of(*model), before);
}

// As for a log. LibTorch then drops the loss's hooks, and the program may add its own.
TEST_P(ScaledLossUse, TheLossMayBeWrittenInTheBlock) {
  const Tensor given = loss();
  bool called = false;
  {
    auto block = amp::scale_loss(given, opt);
    block.backward({}, /*retain_graph=*/true);
    given.div_(4);
    given.register_hook([&called](const Tensor&) { called = true; });
    EXPECT_EQ(message_of([&] { block.finish(); }), "");
  }
  given.backward();
  EXPECT_TRUE(called) << "the end of the block leaves the program's hook";
  model->zero_grad();
  expect_trains();
}

// As one of several losses that autograd may not write in place.
TEST_P(ScaledLossUse, TheLossMayBeAPartOfATensorThatIsWritten) {
  const Tensor losses = loss().expand({2}).clone();
  const auto parts = losses.unbind();
  auto block = amp::scale_loss(parts[0], opt);
  block.backward();
  losses.detach().zero_();
  EXPECT_EQ(message_of([&] { block.finish(); }), "");
}

TEST_P(ScaledLossUse, ABlockKeepsNoGraphAlive) {
  torch_compat::NodePtr node;
  Tensor kept;
  {
    const Tensor given = loss();
    node = given.grad_fn();
    auto block = amp::scale_loss(given, opt);
    block.backward();
    block.finish();
    kept = block.tensor().detach();
  }
  EXPECT_EQ(node.use_count(), 1);
}

// A write in place drops the hooks of the loss, which the end of the block has removed already.
TEST_P(ScaledLossUse, TheLossIsTheProgramsAloneAfterTheBlock) {
  const Tensor given = loss();
  auto block = amp::scale_loss(given, opt);
  block.backward();
  block.finish();
  EXPECT_EQ(given.use_count(), 1u);
  given.div_(4);
}
INSTANTIATE_TEST_SUITE_P(Levels, ScaledLossUse, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

/// Two models that share a loss, as in a GAN.
class UnlistedOptimizer : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    Sgds sgds;
    for (const Mlp& model : {front, back}) sgds.push_back(std::make_unique<torch::optim::SGD>(model->parameters(), 1.0 / 1024));
    std::vector<Mlp> models{front, back};
    auto [handles, optimizers] = amp::initialize(models, sgds, GetParam(), quiet().loss_scale(128.0));
    nets = std::move(handles);
    opts = std::move(optimizers);
  }
  Tensor loss() { return nets[1]->forward(nets[0]->forward(features())).square().sum(); }
  void front_block() { amp::scale_loss(loss(), opts[0]).backward(); }
  void back_block() { amp::scale_loss(nets[1]->forward(features()).square().sum(), opts[1]).backward(); }
  std::string step(int optimizer) {
    return message_of([&] { opts[optimizer]->step(); });
  }

  using Sgds = std::vector<std::unique_ptr<torch::optim::Optimizer>>;
  Mlp front{6, 6}, back{6, 3};
  std::vector<amp::Model<Mlp>> nets;
  Sgds opts;
};

TEST_P(UnlistedOptimizer, IsRefusedWhenItStepsWithABlocksGradients) {
  front_block();
  EXPECT_EQ(step(0), "");
  const auto before = bytes_of(*back);
  const auto error = step(1);
  EXPECT_TRUE(contains(error, "'model1.fc1.weight'"));
  EXPECT_TRUE(contains(error, "amp::scale_loss(loss, {opt_a, opt_b})"));
  EXPECT_EQ(bytes_of(*back), before);
  back->zero_grad();
  { amp::scale_loss(loss(), opts).backward(); }
  EXPECT_EQ(step(0) + step(1), "");
  EXPECT_NE(bytes_of(*back), before);
}

// With masters a block starts without gradients, as in Apex.
TEST_P(UnlistedOptimizer, IsRefusedWhenItsNextBlockWouldAddToThoseGradients) {
  front_block();
  const std::string level = GetParam();
  const bool adds = level != "O2" && level != "O5" && level != "O6";
  const auto expect_answer = [&](const std::string& error) {
    EXPECT_EQ(error.empty(), !adds) << error;
    EXPECT_TRUE(contains(error, adds ? "'model1.fc1.weight'" : ""));
  };
  expect_answer(message_of([&] { back_block(); }));
  opts[1]->zero_grad();
  back_block();
  EXPECT_EQ(step(1), "");
  front_block();  // by now the optimizer has its masters
  expect_answer(message_of([&] { back_block(); }));
}

TEST_P(UnlistedOptimizer, AnErrorOfABlockOfBothIsThrownOnce) {
  {
    const Tensor given = loss();
    auto scaled_loss = amp::scale_loss(given, opts);
    given.backward();
  }
  EXPECT_TRUE(contains(step(0), "and not the scaled loss"));
  { amp::scale_loss(loss(), opts).backward(); }
  EXPECT_EQ(step(0) + step(1), "");
}

TEST_P(UnlistedOptimizer, IsAcceptedAfterZeroGrad) {
  for (int way = 0; way < 4; ++way) {
    front_block();
    EXPECT_EQ(step(0), "");
    if (way == 0) back->zero_grad();
    if (way == 1) back->zero_grad(/*set_to_none=*/false);
    if (way == 2) opts[1]->zero_grad();
    if (way == 3) {
      for (const Tensor& p : back->parameters()) p.mutable_grad().reset();
    }
    back_block();
    EXPECT_EQ(step(1), "");
    front->zero_grad();
  }
}

TEST_P(UnlistedOptimizer, IsRefusedWhereItsBlockIsInsideOfTheOther) {
  for (const bool outer_first : {true, false}) {
    std::string error;
    {
      auto outer = amp::scale_loss(loss(), opts[0]);
      if (outer_first) outer.backward();
      error = message_of([&] { back_block(); });
      if (!outer_first) outer.backward();
    }
    error += step(1);
    EXPECT_TRUE(contains(error, "'model1.fc1.weight'")) << outer_first << error;
    opts[1]->zero_grad();
    EXPECT_EQ(step(0), "");
    back_block();
    EXPECT_EQ(step(1), "");
  }
}

TEST_P(UnlistedOptimizer, NestedBlocksOfDifferentOptimizersAreIndependent) {
  for (const bool steps_inside : {false, true}) {
    {
      auto outer = amp::scale_loss(nets[0]->forward(features()).square().sum(), opts[0]);
      back_block();
      amp::clip_grad_norm_(*opts[1], 1.0);
      if (steps_inside) {
        EXPECT_EQ(step(1), "");
        opts[1]->zero_grad(/*set_to_none=*/false);
        back_block();
      }
      outer.backward();
    }
    EXPECT_EQ(step(0) + step(1), "");
    front->zero_grad();
    back->zero_grad();
  }
}
INSTANTIATE_TEST_SUITE_P(Levels, UnlistedOptimizer, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

}  // namespace
}  // namespace apex::test
