// Gradients that the program drops or zeroes in the model between a block and the step are dropped for the masters too, as in
// the same program without amp.
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"
#include "tests/masters/grads_in.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr double kRate = 1.0 / 1024, kMomentum = 0.5;

using Drop = std::function<void(torch::nn::Module&)>;
const std::vector<Drop>& drops() {
  static const std::vector<Drop> all{
      [](torch::nn::Module& layer) { layer.zero_grad(); },
      [](torch::nn::Module& layer) { layer.zero_grad(/*set_to_none=*/false); },
      [](torch::nn::Module& layer) {
        for (auto& param : layer.parameters()) param.mutable_grad().reset();
      },
      [](torch::nn::Module& layer) {
        for (auto& param : layer.parameters()) param.mutable_grad() = torch::zeros_like(param);
      },
      [](torch::nn::Module& layer) {
        for (auto& param : layer.parameters()) param.grad().data().mul_(0);
      },
  };
  return all;
}

class DroppedGrads : public AmpTest, public ::testing::WithParamInterface<MastersCase> {
 protected:
  void start(const opt_levels::LossScale& scale = 128.0) {
    torch::manual_seed(3);
    model = Mlp();
    auto original = make_sgd(*model, std::get<GradsIn>(GetParam()), kRate, kMomentum);
    std::tie(net, opt) =
        amp::initialize(model, original, std::get<0>(GetParam()), quiet().loss_scale(scale).max_loss_scale(128.0));
  }
  Tensor loss() { return net->forward(features()).square().sum(); }
  Tensor loss_of_fc1() { return net->fc1->forward(features().to(net->fc1->weight.scalar_type())).to(torch::kFloat).sum(); }
  void block(const Tensor& of) { amp::scale_loss(of, opt).backward(); }

  Mlp model{nullptr};
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::Optimizer> opt;
};

TEST_P(DroppedGrads, ALayerWithoutGradientsIsNotStepped) {
  for (const auto& drop : drops()) {
    start();
    const auto fc1 = bytes_of(*net->fc1), fc2 = bytes_of(*net->fc2);
    block(loss());
    drop(*net->fc2);
    opt->step();
    EXPECT_EQ(bytes_of(*net->fc2), fc2);
    EXPECT_NE(bytes_of(*net->fc1), fc1);
  }
}

TEST_P(DroppedGrads, AnAbandonedBatchDoesNotReachTheNextStep) {
  start();
  const auto fc2 = bytes_of(*net->fc2);
  block(loss());
  block(loss_of_fc1());  // afterwards fc2's master has a gradient, the model's parameter has none
  model->zero_grad();
  block(loss_of_fc1());
  opt->step();
  EXPECT_EQ(bytes_of(*net->fc2), fc2);
}

/// A loop that accumulates, and that leaves out all of it once a batch throws.
TEST_P(DroppedGrads, ABlockThatThrowsLeavesEarlierGradientsThatTheModelCanDrop) {
  for (const bool is_dropped : {true, false}) {
    for (const bool throws_late : {true, false}) {
      start();
      const auto fc2 = bytes_of(*net->fc2);
      block(loss());
      try {
        auto scaled = amp::scale_loss(loss(), opt);
        if (throws_late) scaled.backward();
        throw std::runtime_error("a bad batch");
      } catch (const std::runtime_error&) {
        if (is_dropped) model->zero_grad();
      }
      block(loss_of_fc1());
      opt->step();
      EXPECT_EQ(bytes_of(*net->fc2) == fc2, is_dropped);
    }
  }
}

TEST_P(DroppedGrads, DroppingOneGradientKeepsThoseOfOtherPasses) {
  start();
  const auto fc2 = bytes_of(*net->fc2);
  block(loss());
  block(loss_of_fc1());
  net->fc1->bias.mutable_grad().reset();
  opt->step();
  EXPECT_NE(bytes_of(*net->fc2), fc2);
}

/// A pass may produce zeros, and the program may read them.
TEST_P(DroppedGrads, ZeroGradientsThatAreOnlyReadAreKept) {
  start();
  const auto fc2 = bytes_of(*net->fc2);
  block(loss());
  block(loss() * 0 + loss_of_fc1());
  EXPECT_NE(net->fc2->weight.grad().data_ptr(), nullptr);
  block(loss_of_fc1());
  opt->step();
  EXPECT_NE(bytes_of(*net->fc2), fc2);
}

// With a dynamic scale the check for overflow has found the norm of all gradients.
TEST_P(DroppedGrads, AreNotPartOfTheClippedNorm) {
  for (const opt_levels::LossScale& scale : {opt_levels::LossScale(128.0), opt_levels::LossScale("dynamic")}) {
    start(scale);
    block(loss());
    net->fc2->zero_grad();
    double squares = 0;
    for (const Tensor& param : net->fc1->parameters())
      squares += (param.grad().to(torch::kDouble) / 128).square().sum().item<double>();
    // The norm of 35 values is summed in FP32: 36 roundings of 2^-24 at most, which the root halves, and a few more.
    EXPECT_NEAR(amp::clip_grad_norm_(*opt, 1e9), std::sqrt(squares), 24 * 0x1p-24 * std::sqrt(squares));
  }
}

/// A gradient of zeros still applies momentum; an absent one does not.
TEST_P(DroppedGrads, MomentumTreatsZeroAndAbsentGradientsAsWithoutAmp) {
  for (const bool set_to_none : {false, true}) {
    start();
    block(loss());
    opt->step();
    const auto master = [this] { return amp::master_params(*opt)[2].detach().clone(); };  // of fc2.weight
    const Tensor before = master(), momentum = net->fc2->weight.grad().to(torch::kFloat) / 128;
    block(loss());
    net->fc2->zero_grad(set_to_none);
    opt->step();
    // All factors are powers of two: the difference alone is rounded, here as in the step.
    const Tensor expected = set_to_none ? before : before - momentum * (kRate * kMomentum);
    EXPECT_EQ(bytes_of(master()), bytes_of(expected)) << set_to_none;
    EXPECT_TRUE(torch::equal(net->fc2->weight, expected.to(net->fc2->weight.scalar_type()))) << set_to_none;
    EXPECT_EQ(torch::equal(master(), before), set_to_none);
  }
}

TEST_P(DroppedGrads, GradientsThatTheProgramSetsInMastersAreKept) {
  start();
  block(loss());
  const auto masters = amp::master_params(*opt);
  model->zero_grad();
  for (const Tensor& master : masters) master.mutable_grad() = torch::ones_like(master);
  const auto fc2 = bytes_of(*net->fc2);
  opt->step();
  EXPECT_NE(bytes_of(*net->fc2), fc2);
}

INSTANTIATE_TEST_SUITE_P(Masters, DroppedGrads, every_masters_case());

}  // namespace
}  // namespace apex::test
