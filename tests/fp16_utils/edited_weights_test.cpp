// Values that a program writes into the model's weights after FP16_Optimizer has made their masters.
#include <apex_cpp/amp.h>

#include <cmath>
#include <functional>
#include <sstream>

#include "tests/fp16_utils/half_network.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// A weight of ones, whose gradient has one value in all elements. Steps subtract a quarter of it.
class EditedWeights : public ::testing::TestWithParam<torch::Dtype> {
 protected:
  static torch::nn::Linear linear_of(double value) {
    torch::nn::Linear net(torch::nn::LinearOptions(4, 2).bias(false));
    net->to(GetParam());
    torch::nn::init::constant_(net->weight, value);
    return net;
  }
  Tensor& weight() { return net->weight; }
  void fill(double value) { torch::nn::init::constant_(weight(), value); }
  void fill_first_row(double value) {
    const torch::NoGradGuard no_grad;
    weight()[0].fill_(value);
  }
  Tensor loss(double gradient) { return (weight().to(torch::kFloat) * gradient).sum(); }
  void train(double gradient) {
    optimizer.zero_grad();
    optimizer.backward(loss(gradient));
    optimizer.step();
  }
  /// Masters without a 16-bit value: eleven twelfths, but for the rounding of the gradient.
  Tensor train_to_a_third() {
    train(1.0 / 3);
    EXPECT_FALSE(torch::equal(master(), weight().to(torch::kFloat))) << "masters that have nothing to lose show nothing";
    return master();
  }
  Tensor master() const { return optimizer.fp32_from_fp16_params()[0].detach().clone(); }
  static bool holds(const Tensor& tensor, double value) { return tensor.eq(value).all().item<bool>(); }

  torch::nn::Linear net = linear_of(1);
  torch::optim::SGD sgd = torch::optim::SGD(net->parameters(), 0.25);
  FP16_Optimizer optimizer{sgd, dynamic(64)};
};
INSTANTIATE_TEST_SUITE_P(Types, EditedWeights, ::testing::Values(torch::kHalf, torch::kBFloat16),
                         [](const auto& test) { return test.param == torch::kHalf ? "float16" : "bfloat16"; });

TEST_P(EditedWeights, AreWhatTheNextStepStartsFrom) {
  const std::vector<std::pair<const char*, std::function<void()>>> writes = {
      {"fill_", [&] { fill(2); }},
      {"copy_",
       [&] {
         weight().detach().copy_(torch::full({2, 4}, 2.0));
       }},
      {"set_data",
       [&] {
         weight().set_data(torch::full({2, 4}, 2.0, GetParam()));
       }},
      {"data()", [&] { weight().data().fill_(2); }},
      {"torch::load",
       [&] {
         std::stringstream file;
         torch::save(linear_of(2), file);
         torch::load(net, file);
       }},
      {"torch::load of a file in FP32",
       [&] {
         torch::nn::Linear wide(net->options);
         torch::nn::init::constant_(wide->weight, 2);
         std::stringstream file;
         torch::save(wide, file);
         torch::load(net, file);
       }},
  };
  for (const auto& [name, write] : writes) {
    write();
    ASSERT_TRUE(holds(weight(), 2)) << name;
    train(1);
    EXPECT_TRUE(holds(weight(), 1.75)) << name;
    EXPECT_TRUE(holds(master(), 1.75)) << name;
  }
}

TEST_P(EditedWeights, AreWhatAStepWithAClosureStartsFrom) {
  for (const bool within : {false, true}) {
    if (!within) fill(2);
    optimizer.step([&] {
      if (within) fill(2);
      optimizer.zero_grad();
      const Tensor value = loss(1);
      optimizer.backward(value);
      return value;
    });
    EXPECT_TRUE(holds(weight(), 1.75)) << within;
  }
}

TEST_P(EditedWeights, LeaveOtherElementsTheirPrecision) {
  const Tensor before = train_to_a_third();
  fill_first_row(2);
  train(0);
  EXPECT_TRUE(holds(master()[0], 2));
  EXPECT_TRUE(torch::equal(master()[1], before[1]));
  EXPECT_TRUE(torch::equal(weight(), master().to(GetParam())));
}

TEST_P(EditedWeights, InAFloat32ModelLeaveOtherElementsTheirPrecision) {
  const Tensor before = train_to_a_third();
  net->to(torch::kFloat);
  fill_first_row(2);
  train(0);
  EXPECT_TRUE(holds(master()[0], 2));
  EXPECT_TRUE(torch::equal(master()[1], before[1]));
}

TEST_P(EditedWeights, OutlastASkippedStep) {
  fill(2);
  ::testing::internal::CaptureStdout();
  train(INFINITY);
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("Skipping step"), std::string::npos);
  EXPECT_TRUE(holds(weight(), 2));
  train(1);
  EXPECT_TRUE(holds(weight(), 1.75));
}

TEST_P(EditedWeights, MayHaveAnotherLayout) {
  weight().set_data(torch::full({4, 2}, 2.0, GetParam()).t());
  for (int i = 0; i < 2; ++i) train(1);
  EXPECT_TRUE(holds(weight(), 1.5));
}

// The program may restore the weights after it has saved, as after an evaluation with averaged ones.
TEST_P(EditedWeights, AreSavedWithoutAChangeOfTheMasters) {
  const Tensor before = train_to_a_third();
  fill_first_row(2);
  std::stringstream file;
  torch::save(optimizer, file);
  EXPECT_TRUE(torch::equal(master(), before));
  torch::load(optimizer, file);
  EXPECT_TRUE(holds(master()[0], 2));
  EXPECT_TRUE(torch::equal(master()[1], before[1]));
}

TEST_P(EditedWeights, OfBeforeALoadDoNotReachTheLoadedMasters) {
  const Tensor before = train_to_a_third();
  std::stringstream file;
  torch::save(optimizer, file);
  fill(2);
  torch::load(optimizer, file);
  EXPECT_TRUE(torch::equal(master(), before));
  train(0);
  EXPECT_TRUE(torch::equal(master(), before));
  EXPECT_TRUE(torch::equal(weight(), before.to(GetParam())));
}

TEST_P(EditedWeights, ModelAndOptimizerAreLoadedInAnyOrder) {
  const Tensor before = train_to_a_third();
  std::stringstream model_file, optimizer_file;
  torch::save(net, model_file);
  torch::save(optimizer, optimizer_file);
  for (const bool model_first : {true, false}) {
    train(1);
    std::stringstream of_model(model_file.str()), of_optimizer(optimizer_file.str());
    if (model_first) torch::load(net, of_model);
    torch::load(optimizer, of_optimizer);
    if (!model_first) torch::load(net, of_model);
    train(0);
    EXPECT_TRUE(torch::equal(master(), before)) << model_first;
    EXPECT_TRUE(torch::equal(weight(), before.to(GetParam()))) << model_first;
  }
}

}  // namespace
}  // namespace apex::test
