// Gradients made outside every scale_loss block, or changed after one. With masters the step would ignore them, so this is an
// error that names the remedy. Without masters they take effect as without amp.
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"
#include "tests/masters/grads_in.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr double kOutsideRate = 1.0 / 1024;

/// A model whose optimizer keeps masters, with every unscale path.
class UnclaimedGrads : public AmpTest, public ::testing::WithParamInterface<MastersCase> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    auto original = make_sgd(*model, std::get<GradsIn>(GetParam()), kOutsideRate);
    std::tie(net, opt) = amp::initialize(model, original, std::get<0>(GetParam()), quiet().loss_scale(128.0));
  }
  Tensor loss() { return net->forward(features()).square().sum(); }
  void block() { amp::scale_loss(loss(), opt).backward(); }
  std::string step() {
    return message_of([&] { opt->step(); });
  }
  /// The step fails with this message and changes nothing; after zero_grad the program can continue.
  void expect_refused(const std::string& remedy) {
    const auto before = bytes_of(*model);
    const auto error = step();
    EXPECT_TRUE(contains(error, "'fc1.weight'"));
    EXPECT_TRUE(contains(error, remedy));
    EXPECT_EQ(bytes_of(*model), before);
    model->zero_grad();
    block();
    EXPECT_EQ(step(), "");
    EXPECT_NE(bytes_of(*model), before);
  }

  Mlp model;
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::Optimizer> opt;
};

constexpr const char* kLineThree = "{ auto scaled_loss = amp::scale_loss(loss, optimizer); scaled_loss.backward(); }";

TEST_P(UnclaimedGrads, AStepWithoutABlockIsAnErrorThatShowsScaleLoss) {
  loss().backward();
  expect_refused(kLineThree);
}

// The blocks before had a scale of 128 and a clipping factor. fc2 has no masters.
TEST_P(UnclaimedGrads, HandmadeGradientsAfterBlocksAreSteppedAsTheyAre) {
  auto original = make_sgd(*model, std::get<GradsIn>(GetParam()), kOutsideRate);
  std::tie(net, opt) =
      amp::initialize(model, original, std::get<0>(GetParam()), quiet().loss_scale(128.0).float32_modules({"fc2"}));
  for (const bool zeroes : {false, true}) {
    block();
    amp::clip_grad_norm_(*opt, 1e-3);
    EXPECT_EQ(step(), "");
    if (zeroes) opt->zero_grad();  // the base class's
    const auto masters = amp::master_params(*opt);
    std::vector<Tensor> expected;
    for (const Tensor& master : masters) {
      expected.push_back(master.detach() - kOutsideRate);
      master.mutable_grad() = torch::ones_like(master);
    }
    EXPECT_EQ(step(), "");
    for (size_t i = 0; i < masters.size(); ++i) EXPECT_EQ(bytes_of(masters[i]), bytes_of(expected[i])) << i;
  }
}

TEST_P(UnclaimedGrads, AStepWithoutABlockAfterCorrectStepsIsAnError) {
  for (int i = 0; i < 2; ++i) {
    block();
    EXPECT_EQ(step(), "");
  }
  loss().backward();
  expect_refused(kLineThree);
}

TEST_P(UnclaimedGrads, APlainBackwardAfterTheBlockIsRefused) {
  block();
  loss().backward();
  expect_refused("a further loss in a block of its own");
}

TEST_P(UnclaimedGrads, TorchsNormClippingIsAnErrorThatNamesAmps) {
  block();
  torch::nn::utils::clip_grad_norm_(model->parameters(), 0.01);
  expect_refused("amp::clip_grad_norm_(optimizer, max_norm)");
}

TEST_P(UnclaimedGrads, TorchsValueClippingIsAnErrorThatNamesMasterParams) {
  block();
  torch::nn::utils::clip_grad_value_(model->parameters(), 0.01);
  expect_refused("amp::master_params(optimizer)");
}

TEST_P(UnclaimedGrads, EditedGradientsAreAnErrorThatNamesMasterParams) {
  const std::vector<std::function<void(const Tensor&)>> edits = {
      [](const Tensor& p) { p.mutable_grad().mul_(2); },
      [](const Tensor& p) { p.grad().data().mul_(2); },
      [](const Tensor& p) { p.mutable_grad() = p.grad() * 2; },
  };
  for (const auto& edit : edits) {
    block();
    edit(model->fc1->weight);
    expect_refused("amp::master_params(optimizer)");
    model->zero_grad();
  }
}

// A block would replace these gradients, and the step would not use them.
TEST_P(UnclaimedGrads, ABlockIsRefusedLikeAStep) {
  const std::vector<std::pair<std::function<void()>, std::string>> ways = {
      {[&] { loss().backward(); }, kLineThree},
      {[&] { block(), loss().backward(); }, "a further loss in a block of its own"},
      {[&] { block(), model->fc1->weight.mutable_grad() = model->fc1->weight.grad() * 2; }, "amp::master_params(optimizer)"},
  };
  for (const auto& [make_grads, remedy] : ways) {
    make_grads();
    const auto before = bytes_of(model->fc1->weight.grad());
    const auto error = message_of([&] { block(); });
    EXPECT_TRUE(contains(error, "amp::scale_loss found"));
    EXPECT_TRUE(contains(error, "'fc1.weight'"));
    EXPECT_TRUE(contains(error, remedy));
    EXPECT_EQ(bytes_of(model->fc1->weight.grad()), before);
    model->zero_grad();
    block();
    EXPECT_EQ(step(), "");
  }
}

TEST_P(UnclaimedGrads, SeveralBlocksBeforeOneStepAreAccepted) {
  for (int pass = 0; pass < 3; ++pass) block();
  EXPECT_EQ(step(), "");
  for (int pass = 0; pass < 2; ++pass) amp::scale_loss(loss(), opt, amp::ScaleLossOptions().delay_unscale(true)).backward();
  block();
  EXPECT_EQ(step(), "");
}

TEST_P(UnclaimedGrads, ReadingGradientsOrClippingBelowTheLimitIsNoEdit) {
  block();
  const auto clipped = torch::nn::utils::clip_grad_norm_(model->parameters(), 1e9);
  EXPECT_GT(clipped, 0);
  EXPECT_NE(model->fc1->weight.grad().data_ptr(), nullptr);
  EXPECT_EQ(step(), "");
}

TEST_P(UnclaimedGrads, GradientsLeftByAStepAreNoError) {
  block();
  EXPECT_EQ(step(), "");
  ASSERT_TRUE(model->fc1->weight.grad().defined());
  const auto before = bytes_of(*model);
  EXPECT_EQ(step(), "");
  EXPECT_EQ(bytes_of(*model), before);
  block();
  EXPECT_EQ(step(), "");
}

TEST_P(UnclaimedGrads, ZerosAreNoError) {
  block();
  EXPECT_EQ(step(), "");
  model->zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(step(), "");
  block();
  model->zero_grad(/*set_to_none=*/false);
  block();
  EXPECT_EQ(step(), "");
}

/// The remedy that the message gives for gradients without a loss.
TEST_P(UnclaimedGrads, HandmadeGradientsAreSteppedWhenSetInMasterParams) {
  model->fc1->weight.mutable_grad() = torch::ones_like(model->fc1->weight);
  EXPECT_TRUE(contains(step(), "amp::master_params(optimizer)[i].mutable_grad()"));
  model->zero_grad();
  const auto masters = amp::master_params(*opt);
  const Tensor expected = masters[0].detach() - kOutsideRate;
  masters[0].mutable_grad() = torch::ones_like(masters[0]);
  EXPECT_EQ(step(), "");
  EXPECT_EQ(bytes_of(masters[0]), bytes_of(expected));
}

/// The skipped step never read them; the next block starts without gradients, whichever gradients were zeroed.
TEST_P(UnclaimedGrads, GradientsClippedBeforeASkippedStepAreNoError) {
  auto original = make_sgd(*model, std::get<GradsIn>(GetParam()), kOutsideRate);
  const auto options = quiet().loss_scale("dynamic").max_loss_scale(128.0);
  std::tie(net, opt) = amp::initialize(model, original, std::get<0>(GetParam()), options);
  {
    auto scaled_loss = amp::scale_loss(loss(), opt);
    scaled_loss.backward();
    model->fc2->bias.mutable_grad().fill_(kInf);
  }
  torch::nn::utils::clip_grad_norm_(model->parameters(), 0.01);
  EXPECT_EQ(step(), "");
  EXPECT_TRUE(amp::step_result(*opt).skipped);
  opt->zero_grad();  // the base class's, which reaches masters
  const auto before = bytes_of(*model);
  EXPECT_EQ(message_of([&] { block(); }), "");
  EXPECT_EQ(step(), "");
  EXPECT_NE(bytes_of(*model), before);
}

INSTANTIATE_TEST_SUITE_P(Masters, UnclaimedGrads, every_masters_case());

/// Levels without masters: the step reads the model's own gradients.
class GradsWithoutMasters : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  /// At O1 a scale at which nothing overflows.
  static amp::InitializeOptions level_options() {
    return std::string(GetParam()) == "O1" ? quiet().loss_scale(128.0) : quiet();
  }
};

TEST_P(GradsWithoutMasters, AreClippedByTorchAsWithoutAmp) {
  constexpr double kLimit = 0.25;
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), kOutsideRate);
  auto [net, opt] = amp::initialize(model, sgd, GetParam(), level_options());
  { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
  EXPECT_GT(torch::nn::utils::clip_grad_norm_(model->parameters(), kLimit), kLimit);
  std::vector<Tensor> expected, clipped;
  for (const Tensor& p : model->parameters()) {
    expected.push_back(p.detach().clone().add_(p.grad(), -kOutsideRate));
    clipped.push_back(p.grad().to(torch::kDouble).flatten());
  }
  // 16-bit gradients are rounded once more: by 2^-11 of each in FP16.
  EXPECT_LE(torch::cat(clipped).norm().item<double>(), kLimit * (1 + std::ldexp(1.0, -11)));
  opt.step();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(bytes_of(model->parameters()[i]), bytes_of(expected[i]));
}

TEST_P(GradsWithoutMasters, APlainBackwardIsStepped) {
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), kOutsideRate);
  auto [net, opt] = amp::initialize(model, sgd, GetParam(), level_options());
  net->forward(features()).square().sum().backward();
  const auto expected = model->fc1->weight.detach().clone().add_(model->fc1->weight.grad(), -kOutsideRate);
  opt.step();
  EXPECT_EQ(bytes_of(model->fc1->weight), bytes_of(expected));
}
INSTANTIATE_TEST_SUITE_P(Levels, GradsWithoutMasters, ::testing::Values("O0", "O1", "O3", "O4"));

}  // namespace
}  // namespace apex::test
