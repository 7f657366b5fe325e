// FP16O-05: steps, skipped ones and closures.
#include <apex_cpp/amp.h>

#include <cmath>

#include "tests/fp16_utils/half_network.h"

namespace apex::test {
namespace {

TEST(Fp16OptimizerStep, AnOverflowSkipsTheStepAndHalvesTheScale) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(256, 2));
  optimizer.backward(net.loss());
  optimizer.step();
  const auto momentum = [&sgd] {
    std::vector<torch::Tensor> all;
    for (const auto& param : sgd.param_groups()[0].params()) {
      const auto& state = *sgd.state().at(param.unsafeGetTensorImpl());
      all.push_back(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
    }
    return copies(all);
  };
  const auto model = copies(net.parameters()), masters = copies(sgd.param_groups()[0].params()), buffers = momentum();
  optimizer.zero_grad();
  optimizer.backward(net.loss() * INFINITY);
  EXPECT_TRUE(optimizer.overflow());
  EXPECT_EQ(optimizer.loss_scale(), 128.0);
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(optimizer.step().defined());
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("128"), std::string::npos);
  EXPECT_TRUE(equal(copies(net.parameters()), model));
  EXPECT_TRUE(equal(copies(sgd.param_groups()[0].params()), masters));
  EXPECT_TRUE(equal(momentum(), buffers));
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    optimizer.backward(net.loss());
  }
  EXPECT_FALSE(optimizer.overflow());
  EXPECT_EQ(optimizer.loss_scale(), 256.0) << "two clean updates";
}

TEST(Fp16OptimizerStep, AStaticScaleNeverChecksForOverflow) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(16));
  optimizer.backward(net.loss() * INFINITY);
  EXPECT_FALSE(optimizer.overflow());
  EXPECT_EQ(optimizer.loss_scale(), 16.0);
  optimizer.step();
  EXPECT_FALSE(torch::isfinite(net.first->weight).all().item<bool>());
}

TEST(Fp16OptimizerStep, WithoutAClosureItReturnsTheOptimizersResult) {
  struct Returning7 : torch::optim::SGD {
    using SGD::SGD;
    torch::Tensor step(LossClosure closure = nullptr) override { return closure ? SGD::step(closure) : torch::full({}, 7.0); }
  };
  HalfNetworkForTests net;
  Returning7 sgd(net.parameters(), torch::optim::SGDOptions(0.125));
  FP16_Optimizer optimizer(sgd, quiet());
  optimizer.backward(net.loss());
  EXPECT_EQ(optimizer.step().item<double>(), 7.0);
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto value = net.loss();
    optimizer.backward(value);
    return value;
  });
  EXPECT_TRUE(loss.defined());
}

// LBFGS calls its closure many times, moving the masters in between: the model has to follow.
TEST(Fp16OptimizerStep, TheClosureSeesTheMastersValuesInTheModel) {
  HalfNetworkForTests net;
  torch::optim::LBFGS lbfgs(net.parameters(), torch::optim::LBFGSOptions(0.05).max_iter(4));
  FP16_Optimizer optimizer(lbfgs, quiet().static_loss_scale(8));
  int calls = 0;
  const double before = net.loss().item<double>();
  const auto closure = [&] {
    ++calls;
    for (size_t i = 0; i < optimizer.fp16_params().size(); ++i) {
      EXPECT_TRUE(torch::equal(optimizer.fp16_params()[i], optimizer.fp32_from_fp16_params()[i].to(torch::kHalf))) << calls;
    }
    optimizer.zero_grad();
    auto loss = net.loss();
    optimizer.backward(loss);
    return loss;
  };
  for (int i = 0; i < 3; ++i) optimizer.step(closure);
  EXPECT_GT(calls, 3);
  EXPECT_LT(net.loss().item<double>(), before);
}

TEST(Fp16OptimizerStep, AnOverflowingClosureRunsAgainAtTheNextScale) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(1024));
  int calls = 0;
  const auto before = copies(net.parameters());
  ::testing::internal::CaptureStdout();
  optimizer.step([&] {
    optimizer.zero_grad();
    auto loss = net.loss() * (++calls < 3 ? INFINITY : 1.0);
    optimizer.backward(loss);
    return loss;
  });
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("512"), std::string::npos);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(optimizer.loss_scale(), 256.0);
  EXPECT_FALSE(equal(copies(net.parameters()), before));
  for (const auto& param : net.parameters()) EXPECT_TRUE(torch::isfinite(param).all().item<bool>());
}

// Skipped steps are printed as amp's are: not at verbosity 0.
TEST(Fp16OptimizerStep, AnOverflowIsPrintedAtTheVerbosityOfAmp) {
  for (const int64_t verbosity : {0, 1}) {
    torch::nn::Linear other(2, 2);
    torch::optim::SGD other_sgd(other->parameters(), 0.1);
    HalfNetworkForTests net;
    auto sgd = sgd_over(net.parameters());
    FP16_Optimizer optimizer(sgd, dynamic(1024));
    ::testing::internal::CaptureStdout();
    auto handles = amp::initialize(other, other_sgd, "O0", amp::InitializeOptions().verbosity(verbosity));
    optimizer.backward(net.loss() * INFINITY);
    optimizer.step();
    optimizer.zero_grad();
    optimizer.backward(net.loss());
    int calls = 0;
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = net.loss() * (++calls < 2 ? INFINITY : 1.0);
      optimizer.backward(loss);
      return loss;
    });
    amp::reset();
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(text.find("gradient overflow. Skipping step") != std::string::npos, verbosity > 0) << text;
    EXPECT_EQ(text.find("gradient overflow in the closure") != std::string::npos, verbosity > 0) << text;
  }
}

// Apex would call the closure for ever.
TEST(Fp16OptimizerStep, AClosureThatAlwaysOverflowsIsAnError) {
  for (const bool floor : {true, false}) {
    HalfNetworkForTests net;
    auto sgd = sgd_over(net.parameters());
    auto args = DynamicLossArgs().init_scale(16);
    if (floor) args.min_loss_scale(4.0);
    FP16_Optimizer optimizer(sgd, quiet().dynamic_loss_scale(true).dynamic_loss_args(args));
    const auto before = copies(net.parameters());
    double factor = INFINITY;
    const auto closure = [&] {
      optimizer.zero_grad();
      auto loss = net.loss() * factor;
      optimizer.backward(loss);
      return loss;
    };
    ::testing::internal::CaptureStdout();
    EXPECT_THROW(optimizer.step(closure), c10::Error);
    ::testing::internal::GetCapturedStdout();
    factor = 1.0;
    optimizer.set_loss_scale(16);
    EXPECT_TRUE(optimizer.step(closure).defined());
    EXPECT_FALSE(equal(copies(net.parameters()), before)) << "the next step trains";
  }
}

// The gradients overflow still, but the closure makes new ones.
TEST(Fp16OptimizerStep, AClosureThatThrewAfterAnOverflowIsCalledAgain) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(1024));
  const auto before = copies(net.parameters());
  int calls = 0;
  const auto closure = [&] {
    TORCH_CHECK(++calls != 2, "the repeated closure failed");
    optimizer.zero_grad();
    auto loss = net.loss() * (calls == 1 ? INFINITY : 1.0);
    optimizer.backward(loss);
    return loss;
  };
  ::testing::internal::CaptureStdout();
  EXPECT_THROW(optimizer.step(closure), c10::Error);
  EXPECT_FALSE(optimizer.step().defined());
  EXPECT_TRUE(equal(copies(net.parameters()), before));
  EXPECT_TRUE(optimizer.step(closure).defined());
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(calls, 3);
  EXPECT_FALSE(optimizer.overflow());
  EXPECT_FALSE(equal(copies(net.parameters()), before));
}

TEST(Fp16OptimizerStep, ASchedulerOnTheWrappedOptimizerReachesTheSteps) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  torch::optim::StepLR scheduler(sgd, 1, 0.0);
  FP16_Optimizer optimizer(sgd, quiet());
  for (int i = 0; i < 2; ++i) scheduler.step();  // LibTorch's first step changes nothing
  const auto before = copies(net.parameters());
  optimizer.backward(net.loss());
  optimizer.step();
  EXPECT_TRUE(equal(copies(net.parameters()), before)) << "the rate is zero";
}

}  // namespace
}  // namespace apex::test
