// The parameters that DistributedDataParallel reduces.
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ddp_support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

TEST(Ddp, NamesUnusedParametersOnEveryRank_DDP_05_BUG_23) {
  for (const bool at_first : {true, false}) {
    TwoBranches net;
    auto ddp = DistributedDataParallel(net, Options().message_size(1));
    const Tensor x = torch::ones({1, 4});
    if (!at_first) ddp(x).sum().backward();
    net->without_second = rank() == world_size() - 1;
    const std::string message = message_of([&] { ddp(x).sum().backward(); });
    EXPECT_TRUE(contains(message, "'second.weight' on rank " + std::to_string(world_size() - 1) + ","));
    EXPECT_FALSE(contains(message, "first.weight"));
    EXPECT_TRUE(contains(message, "delay_allreduce(true)"));
    net->without_second = false;
    net->zero_grad();
    ddp(x * 3).sum().backward();
    EXPECT_TRUE(
        net->second->weight.grad().equal(torch::full({5, 4}, 3.0f * static_cast<float>(world_size())) * (1.0 / world_size())));
  }
}

// The node of a checkpoint reaches the parameters of all of its results, with undefined gradients where a result is unused.
TEST(Ddp, NamesParametersThatGotAnUndefinedGradient) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net, Options().message_size(1));
  const auto backward = [&](bool uses_second) {
    net->zero_grad();
    const auto both = [net](const Tensor& x) mutable { return std::make_pair(net->first(x), net->second(x)); };
    const auto [a, b] = checkpoint(both, torch::ones({1, 4}));
    (uses_second ? a.sum() + b.sum() : a.sum()).backward();
  };
  backward(true);
  const std::string message = message_of([&] { backward(rank() != 0); });
  EXPECT_TRUE(contains(message, "'second.weight' on rank 0,")) << message;
  backward(true);
  EXPECT_TRUE(net->second->weight.grad().defined());
}

// Rank 0 gets none at all, and takes part in the reduction.
TEST(Ddp, DelayedReductionToleratesUndefinedGradients) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net->second, Options().delay_allreduce(true));
  const auto both = [net](const Tensor& x) mutable { return std::make_pair(net->first(x), net->second(x)); };
  const auto [a, b] = checkpoint(both, torch::ones({1, 4}));
  (rank() > 0 ? a.sum() + b.sum() : a.sum()).backward();
  // Each of the others has gradients of ones, whose sum is exact.
  EXPECT_TRUE(net->second->weight.grad().equal(torch::full({5, 4}, world_size() - 1.0) * (1.0 / world_size())));
}

TEST(Ddp, DelayedReductionToleratesUnusedParameters_DDP_06) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net, Options().delay_allreduce(true));
  for (int pass = 0; pass < 2; ++pass) {
    net->zero_grad();
    net->without_second = rank() > 0;
    ddp(torch::ones({1, 4})).sum().backward();
    // Only rank 0 used the parameter. The others contribute zero, and all get the mean.
    EXPECT_TRUE(net->second->weight.grad().equal(torch::ones({5, 4}) * (1.0 / world_size())));
    net->zero_grad();
    net->without_second = true;
    ddp(torch::ones({1, 4})).sum().backward();
    EXPECT_FALSE(net->second->weight.grad().defined()) << "nobody used it";
    EXPECT_TRUE(net->first->weight.grad().defined());
  }
}

TEST(Ddp, SupportsFreezingAndUnfreezingParameters_DDP_04) {
  TwoBranches net;
  net->second->weight.requires_grad_(false);
  auto ddp = DistributedDataParallel(net, Options().retain_allreduce_buffers(true));
  const auto buffer_sizes = [&] {
    int64_t numel = 0;
    for (const Tensor& buffer : ddp.allreduce_buffers()) numel += buffer.numel();
    return numel;
  };
  const auto train = [&](int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      net->zero_grad();
      ddp(torch::full({1, 4}, rank(), torch::kFloat)).sum().backward();
    }
  };
  const Tensor mean = torch::full({1}, static_cast<float>(world_size() * (world_size() - 1) / 2)) * (1.0 / world_size());
  train(2);
  EXPECT_EQ(buffer_sizes(), 12);
  net->second->weight.requires_grad_(true);
  for (int passes : {1, 2}) {
    train(passes);
    EXPECT_EQ(buffer_sizes(), 32);
    EXPECT_TRUE(net->second->weight.grad().equal(mean.expand({5, 4})));
  }
  net->first->weight.requires_grad_(false);
  train(2);
  EXPECT_EQ(buffer_sizes(), 20);
}

// All weights have the same size, so that buckets of different ones do.
TEST(Ddp, RanksThatFreezeDifferentParametersGetAnError) {
  const auto layer = [] { return torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)); };
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    for (const bool delayed : {true, false}) {
      torch::nn::Sequential net(layer(), layer(), layer());
      net->to(dtype);
      auto ddp = DistributedDataParallel(net, Options().delay_allreduce(delayed));
      const auto backward = [&] { ddp(torch::ones({1, 4}, dtype)).sum().backward(); };
      const int64_t other = rank() == 1 ? 0 : 1;
      for (const bool at_first : {true, false}) {
        net->parameters()[other].requires_grad_(false);
        const std::string message = message_of(backward);
        if (delayed && !at_first) {
          const std::string own = rank() == 1 ? "of '1.weight', '2.weight' with" : "of '0.weight', '2.weight' with";
          EXPECT_TRUE(contains(message, own)) << message;
          const std::string ranks = rank() != 1 ? "on rank 1." : world_size() == 2 ? "on rank 0." : "on ranks 0 2";
          EXPECT_TRUE(contains(message, ranks)) << message;
        } else {
          EXPECT_TRUE(contains(message, "rank 0: 0.weight\n  rank 1: 1.weight")) << message;
        }
        net->parameters()[other].requires_grad_(true);
        net->zero_grad();
        backward();
        for (const Tensor& param : net->parameters()) EXPECT_TRUE(param.grad().defined());
      }
    }
  }
}

// A graph from before the parameter was frozen passes its gradient's hook once more.
TEST(Ddp, SkipsParametersFrozenAfterTheForwardPass) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net);
  const Tensor early = ddp(torch::ones({1, 4})), late = ddp(torch::ones({1, 4}));
  net->second->weight.requires_grad_(false);
  early.backward();
  ddp(torch::ones({1, 4})).backward();
  late.backward();
  // Three means of ones: some dozen roundings of 2^-24, because 1 / n is rounded.
  EXPECT_TRUE(torch::allclose(net->first->weight.grad(), torch::full({3, 4}, 3.0), 1e-6, 0));
  EXPECT_FALSE(net->second->weight.grad().defined());
}

TEST(Ddp, ConvertingTheWrappedModelIsAnError) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(0)).sum().backward();
  net->to(torch::kFloat);  // keeps the dtype
  ddp(part_of_batch(0)).sum().backward();
  net->fc1->weight.requires_grad_(false);
  net->to(torch::kDouble);
  const std::string message = message_of([&] { ddp(part_of_batch(0).to(torch::kDouble)); });
  EXPECT_TRUE(contains(message, "on rank " + std::to_string(rank()) +
                                    ": the parameter 'fc1.bias' was converted or moved, to"
                                    " Double on cpu"))
      << message;
}

TEST(Ddp, ASparseGradientIsAnErrorThatNamesTheParameter) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  auto ddp = DistributedDataParallel(table);
  const std::string message = message_of([&] { ddp(torch::tensor({1, 2})).sum().backward(); });
  EXPECT_TRUE(contains(message, "on rank " + std::to_string(rank()) + ": the gradient of 'weight' is sparse"));
}

}  // namespace
}  // namespace apex::parallel
