// FP16O-09: a resumed run continues bit for bit.
#include <cmath>
#include <sstream>

#include "tests/errors.h"
#include "tests/fp16_utils/half_network.h"

namespace apex::test {
namespace {

template <class Opt>
void train(HalfNetworkForTests& net, Opt& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    optimizer.backward(net.loss());
    optimizer.step();
  }
}

template <class Make>
void expect_invisible_resume(Make make) {
  HalfNetworkForTests net;
  auto inner = make(net.parameters());
  FP16_Optimizer optimizer(inner, dynamic(256, 3));
  train(net, optimizer, 2);
  const auto model = copies(net.parameters());
  std::stringstream file;
  torch::save(optimizer, file);
  train(net, optimizer, 3);

  HalfNetworkForTests again;
  auto inner_again = make(again.parameters());
  FP16_Optimizer resumed(inner_again, dynamic(1024, 50));
  train(again, resumed, 1);  // it is not fresh either
  torch::NoGradGuard no_grad;
  const auto params = again.parameters();
  for (size_t i = 0; i < params.size(); ++i) torch::Tensor(params[i]).copy_(model[i]);
  torch::load(resumed, file);
  torch::AutoGradMode with_grad(true);
  EXPECT_EQ(resumed.loss_scale(), 256.0);
  EXPECT_EQ(resumed.loss_scaler().unskipped(), 2);
  train(again, resumed, 3);
  EXPECT_EQ(resumed.loss_scale(), optimizer.loss_scale());
  EXPECT_TRUE(equal(copies(again.parameters()), copies(net.parameters())));
  EXPECT_TRUE(equal(copies(resumed.fp32_from_fp16_params()), copies(optimizer.fp32_from_fp16_params())));
}

TEST(Fp16OptimizerState, ResumesBitwiseWithSgd) { expect_invisible_resume(sgd_over); }

TEST(Fp16OptimizerState, ResumesBitwiseWithAdam) {
  expect_invisible_resume([](const std::vector<torch::Tensor>& params) { return torch::optim::Adam(params, 0.01); });
}

// The momentum of the steps in between is gone, too.
TEST(Fp16OptimizerState, LoadingRollsBackToBeforeTheFirstStep) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(256));
  const auto start = copies(net.parameters());
  std::stringstream file;
  torch::save(optimizer, file);
  train(net, optimizer, 3);
  const auto after = copies(net.parameters());
  {
    const torch::NoGradGuard no_grad;
    const auto params = net.parameters();
    for (size_t i = 0; i < params.size(); ++i) torch::Tensor(params[i]).copy_(start[i]);
  }
  torch::load(optimizer, file);
  train(net, optimizer, 3);
  EXPECT_TRUE(equal(copies(net.parameters()), after));
}

TEST(Fp16OptimizerState, ThePendingSkipIsSavedToo) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(256));
  optimizer.backward(net.loss() * INFINITY);
  std::stringstream file;
  torch::save(optimizer, file);
  HalfNetworkForTests other;
  auto other_sgd = sgd_over(other.parameters());
  FP16_Optimizer loaded(other_sgd, quiet());
  torch::load(loaded, file);
  EXPECT_TRUE(loaded.overflow());
  EXPECT_TRUE(loaded.loss_scaler().dynamic()) << "dynamic_loss_scale is saved";
  EXPECT_EQ(loaded.loss_scale(), 128.0);
}

TEST(Fp16OptimizerState, MismatchedMastersAreAnErrorAndChangeNothing) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(32));
  train(net, optimizer, 2);  // else the file has the values with which the other network begins
  std::stringstream file;
  torch::save(optimizer, file);
  const std::string bytes = file.str();
  for (const bool fewer : {true, false}) {
    HalfNetworkForTests other;
    auto params = other.parameters();
    if (fewer) {
      params.pop_back();
    } else {
      params.back() = torch::ones({9}, torch::kHalf).requires_grad_();
    }
    auto other_sgd = sgd_over(params);
    FP16_Optimizer loaded(other_sgd, quiet().static_loss_scale(2));
    const auto before = copies(loaded.fp32_from_fp16_params());
    std::stringstream copy(bytes);
    EXPECT_THROW(torch::load(loaded, copy), c10::Error);
    EXPECT_EQ(loaded.loss_scale(), 2.0);
    EXPECT_TRUE(equal(copies(loaded.fp32_from_fp16_params()), before));
    EXPECT_TRUE(other_sgd.state().empty()) << "the file's momentum";
  }
}

// Of the same masters: the second group of one of them lacks a float32 parameter.
TEST(Fp16OptimizerState, AFileWithAnotherGroupChangesNoOption) {
  HalfNetworkForTests net, other;
  const std::vector<torch::Tensor> one = {other.norm->weight};
  torch::optim::SGD sgd({net.first->parameters(), net.norm->parameters()}, 0.5);
  torch::optim::SGD other_sgd({other.first->parameters(), one}, 0.125);
  FP16_Optimizer optimizer(sgd, quiet()), loaded(other_sgd, quiet().static_loss_scale(2));
  std::stringstream file;
  torch::save(optimizer, file);
  expect_error([&] { torch::load(loaded, file); }, {"the optimizer's parameter group 1, which has 1 parameters"});
  for (const auto& group : other_sgd.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.125);
  EXPECT_EQ(loaded.loss_scale(), 2.0);
}

// LBFGS has scratch tensors, of which those that no step has used are undefined.
TEST(Fp16OptimizerState, ResumesBitwiseWithLbfgsAfterAStep) {
  const auto run = [](bool resumes) {
    HalfNetworkForTests net;
    torch::optim::LBFGS lbfgs(net.parameters(), torch::optim::LBFGSOptions(0.05).max_iter(3));
    FP16_Optimizer optimizer(lbfgs, quiet().static_loss_scale(8));
    const auto closure = [&] {
      optimizer.zero_grad();
      auto loss = net.loss();
      optimizer.backward(loss);
      return loss;
    };
    optimizer.step(closure);
    if (resumes) {
      std::stringstream file;
      torch::save(optimizer, file);
      torch::load(optimizer, file);
    }
    optimizer.step(closure);
    return copies(net.parameters());
  };
  EXPECT_TRUE(equal(run(true), run(false)));
}

TEST(Fp16OptimizerState, AnotherKindOfFileIsAnError) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  std::stringstream file;
  torch::save(sgd, file);
  FP16_Optimizer optimizer(sgd, quiet());
  EXPECT_THROW(torch::load(optimizer, file), c10::Error);
}

}  // namespace
}  // namespace apex::test
