#pragma once
// Small networks, training steps and comparisons shared by the tests of amp.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/errors.h"

namespace apex::test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Convolution, batch norm and a linear layer: with and without FP32 parameters at O2.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl();
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

/// Two linear layers; every parameter is 16-bit at O2.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t in = 6, int64_t out = 3);
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

/// One linear layer that can be cloned, as DataParallel does.
struct ReplicatedImpl : torch::nn::Cloneable<ReplicatedImpl> {
  ReplicatedImpl() { reset(); }
  void reset() override;
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Replicated);

torch::Tensor images();    // [4, 1, 6, 6]
torch::Tensor features();  // [4, 6]
/// Initializes quietly: tests read errors and tensors, not prints.
amp::InitializeOptions quiet();

/// A hash over every byte of a tensor, so that comparisons are bitwise and NaNs count.
std::string bytes_of(const torch::Tensor& tensor);
/// The same hash over an optimizer's parameters and its whole state (moments and counters), by position.
std::string bytes_of(torch::optim::Optimizer& optimizer);
std::string bytes_of(const torch::nn::Module& module);

::testing::AssertionResult contains(const std::string& text, const std::string& part);

/// Every test starts without a session and with the same seed.
class AmpTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

}  // namespace apex::test
