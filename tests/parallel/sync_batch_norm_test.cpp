// SyncBatchNorm and converted models in a program without a process group act as plain batch norm (SBN-04).
#include <apex_cpp/fp16_utils.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <sstream>

#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using parallel::SyncBatchNorm;
using parallel::SyncBatchNormOptions;

std::vector<torch::Tensor> trained_once(torch::nn::AnyModule norm, const torch::Tensor& input) {
  torch::manual_seed(1);
  const auto x = input.detach().clone().requires_grad_();
  const auto output = norm.forward(x);
  output.backward(torch::randn_like(output));
  std::vector<torch::Tensor> all{output.detach(), x.grad()};
  for (const auto& parameter : norm.ptr()->parameters()) all.push_back(parameter.grad());
  for (const auto& buffer : norm.ptr()->buffers()) all.push_back(buffer);
  return all;
}

void expect_same_bits(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

TEST(SyncBatchNormAlone, HasTheBitsOfBatchNorm) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto input = torch::randn({4, 3, 5, 5}).to(dtype);
    SyncBatchNorm sync(3);
    torch::nn::BatchNorm2d plain(3), converted(3);
    parallel::convert_syncbn_model(converted);
    if (dtype == torch::kDouble) sync->to(dtype), plain->to(dtype), converted->to(dtype);
    const auto expected = trained_once(torch::nn::AnyModule(plain), input);
    expect_same_bits(trained_once(torch::nn::AnyModule(sync), input), expected);
    expect_same_bits(trained_once(torch::nn::AnyModule(converted), input), expected);
  }
}

TEST(SyncBatchNormAlone, TakesParametersOfAnotherDtypeThanTheInput) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    const auto input = torch::randn({4, 3, 5, 5});
    SyncBatchNorm norm(3), expected(3);
    norm->to(dtype);
    for (int pass = 0; pass < 2; ++pass) {
      const auto output = norm->forward(input);
      EXPECT_TRUE(output.equal(expected->forward(input))) << dtype;
      output.sum().backward();
      EXPECT_EQ(norm->weight.grad().scalar_type(), dtype);
      EXPECT_TRUE(norm->running_var.equal(expected->running_var.to(dtype))) << dtype;
      expected->running_mean.copy_(norm->running_mean);
      expected->running_var.copy_(norm->running_var);
      norm->eval();
      expected->eval();
    }
  }
}

// Without momentum the running statistics are the average over all batches, which evaluation uses and keeps.
TEST(SyncBatchNormAlone, AveragesAllBatchesWithoutMomentum) {
  torch::manual_seed(2);
  SyncBatchNorm sync(SyncBatchNormOptions(3).momentum(std::nullopt));
  torch::nn::BatchNorm2d plain(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt));
  for (const bool training : {true, true, true, false, false}) {
    sync->train(training);
    plain->train(training);
    const auto input = torch::randn({4, 3, 5, 5});
    EXPECT_TRUE(sync->forward(input).equal(plain->forward(input)));
    expect_same_bits(sync->buffers(), plain->buffers());
  }
  EXPECT_EQ(sync->num_batches_tracked.item<int64_t>(), 3);
}

struct HasABuffer : torch::nn::Module {
  explicit HasABuffer(const std::vector<const char*>& names) {
    for (const char* name : names) register_buffer(name, torch::ones({3}));
  }
};

TEST(SyncBatchNormAlone, ConversionWarnsOfModulesWithBothRunningStatistics) {
  const auto warnings_for = [](const std::vector<const char*>& names) {
    CaughtWarnings caught;
    HasABuffer module(names);
    parallel::convert_syncbn_model(module);
    return caught.text;
  };
  EXPECT_EQ(warnings_for({}), "");
  EXPECT_EQ(warnings_for({"running_mean"}), "");
  EXPECT_EQ(warnings_for({"running_var"}), "");
  EXPECT_NE(warnings_for({"running_mean", "running_var"}).find("running statistics of its own"), std::string::npos);
}

TEST(SyncBatchNormAlone, ConversionRefusesAnEpsThatIsNegativeOrNoNumber) {
  for (const double eps : {-1e-5, double{NAN}, double{INFINITY}}) {
    torch::nn::BatchNorm2d plain(torch::nn::BatchNorm2dOptions(3).eps(eps));
    EXPECT_THROW(parallel::convert_syncbn_model(plain), c10::ValueError) << eps;
  }
}

TEST(SyncBatchNormAlone, HasTheSecondDerivativeOfBatchNorm) {
  torch::manual_seed(4);
  const auto values = torch::randn({4, 3}, torch::kDouble);
  const auto second = [&](const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
    const auto input = values.clone().requires_grad_();
    const auto grad = torch::autograd::grad({forward(input).pow(2).sum()}, {input}, {}, true, /*create_graph=*/true);
    grad[0].pow(2).sum().backward();
    return input.grad();
  };
  SyncBatchNorm norm(SyncBatchNormOptions(3).fuse_relu(true));
  torch::nn::BatchNorm1d plain(3);
  norm->to(torch::kDouble);
  plain->to(torch::kDouble);
  const auto expected = second([&](const torch::Tensor& x) { return plain->forward(x).relu(); });
  EXPECT_GT(expected.abs().max().item<double>(), 0);
  EXPECT_TRUE(second([&](const torch::Tensor& x) { return norm->forward(x); }).equal(expected));
}

TEST(SyncBatchNormAlone, RejectsOneValuePerChannelAndChangesNothing) {  // SBN-04
  SyncBatchNorm norm(3);
  EXPECT_THROW(norm->forward(torch::ones({1, 3})), c10::ValueError);
  EXPECT_THROW(norm->forward(torch::ones({0, 3})), c10::ValueError);
  SyncBatchNorm without_channels{SyncBatchNormOptions(0)};
  EXPECT_THROW(without_channels->forward(torch::ones({4, 0})), c10::ValueError);
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({3})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(SyncBatchNormAlone, StaysFloat32AmongHalfWeightsIfAffine) {
  torch::nn::Sequential net(torch::nn::Linear(4, 3), SyncBatchNorm(3), SyncBatchNorm(SyncBatchNormOptions(3).affine(false)));
  fp16_utils::convert_network(*net, torch::kHalf);
  EXPECT_EQ(net->ptr(0)->parameters()[0].scalar_type(), torch::kHalf);
  EXPECT_EQ(net->ptr(1)->parameters()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(net->ptr(1)->buffers()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(net->ptr(2)->buffers()[0].scalar_type(), torch::kHalf);
}

TEST(SyncBatchNormAlone, PrintsItsOptions) {
  std::ostringstream text;
  text << *SyncBatchNorm(SyncBatchNormOptions(3).momentum(std::nullopt));
  EXPECT_EQ(text.str(),
            "apex::parallel::SyncBatchNorm(3, eps=1e-05, momentum=None, affine=true, track_running_stats=true, "
            "channel_last=false, fuse_relu=false)");
  text.str("");
  text << *SyncBatchNorm(SyncBatchNormOptions(4).momentum(0.25).affine(false).fuse_relu(true));
  EXPECT_EQ(text.str(),
            "apex::parallel::SyncBatchNorm(4, eps=1e-05, momentum=0.25, affine=false, track_running_stats=true, "
            "channel_last=false, fuse_relu=true)");
}

}  // namespace
}  // namespace apex::test
