// DistributedDataParallel without amp: sums, buckets and models. Weights, inputs and sums are small integers, so every sum is
// exact in float32 in any order, and results can be compared bit for bit at any number of ranks.
#include <apex_cpp/parallel.h>
#include <apex_cpp/parallel/ddp/bucket_plan.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ddp_support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

void train_with(const Options& options, int passes = 3) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, options);
  for (int pass = 0; pass < passes; ++pass) {
    net->zero_grad();
    ddp(part_of_batch(pass)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(pass)));
  }
}

// Apex's tests/distributed/DDP/ddp_race_condition_test.py, for any number of ranks.
struct RaceImpl : torch::nn::Module {
  explicit RaceImpl(int64_t numel)
      : a(register_parameter("a", torch::full({numel}, 1.0))), b(register_parameter("b", torch::full({numel}, 2.0))) {}
  Tensor forward(const Tensor& input) { return (input * a) * b; }
  Tensor a, b;
};
TORCH_MODULE(Race);

void race(int64_t numel, const std::function<Options(Race&)>& options, int passes) {
  Race net(numel);
  auto ddp = DistributedDataParallel(net, options(net));
  const double n = world_size();
  for (int i = 0; i < passes; ++i) {
    net->zero_grad();
    ddp(torch::full({numel}, i + rank(), torch::kFloat)).sum().backward();
    const float sum = static_cast<float>(n * (2 * i + n - 1) / 2);
    const Tensor mean = torch::full({1}, sum) * (1.0 / n);
    EXPECT_TRUE(net->a.grad().equal((mean * 2).expand({numel}))) << "pass " << i;
    EXPECT_TRUE(net->b.grad().equal(mean.expand({numel}))) << "pass " << i;
  }
}

TEST(Ddp, RaceCondition) {
  race(
      4096, [](Race&) { return Options().message_size(1); }, 10);
  race(
      4096, [](Race& net) { return Options().allreduce_trigger_params({net->b}); }, 10);
  race(
      1 << 20, [](Race&) { return Options().message_size(1); }, 3);
}

TEST(Ddp, GradientsEqualTheCombinedBatchs) {
  train_with(Options());
  train_with(Options().message_size(1));
  train_with(Options().message_size(20));
  train_with(Options().delay_allreduce(true));
  train_with(Options().prof(true));
}

TEST(Ddp, SumsWithoutAverage_DDP_07) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
  ddp->forward(part_of_batch(0)).sum().backward();
  expect_equal(gradients_of(*net), joined_gradients());
}

TEST(Ddp, PredividesWithoutAverageToo_DDP_07) {
  for (const bool average : {true, false}) {
    WholeNumbers net;
    auto ddp = DistributedDataParallel(net, Options().gradient_predivide_factor(4.0).gradient_average(average));
    ddp(part_of_batch(0)).sum().backward();
    auto expected = joined_gradients();
    for (Tensor& each : expected) each = each * 0.25 * (average ? 4.0 / world_size() : 1.0);
    expect_equal(gradients_of(*net), expected);
  }
}

// Every rank's gradient is 60000; a sum of two overflows float16.
TEST(Ddp, SumsOfFloat16MayOverflowUnlessWidenedOrPredivided_DDP_07) {
  const auto mean_with = [](const Options& options) {
    Race net(8);
    net->to(torch::kHalf);
    auto ddp = DistributedDataParallel(net, options);
    const Tensor output = ddp(torch::full({8}, 30000, torch::kHalf));
    output.backward(torch::ones_like(output));
    return net->a.grad();
  };
  const Tensor finite = torch::full({8}, 60000, torch::kHalf);
  EXPECT_TRUE(torch::isinf(mean_with(Options())).all().item<bool>());
  EXPECT_TRUE(torch::allclose(mean_with(Options().allreduce_always_fp32(true)), finite, 0x1p-11));  // rounded to float16 once
  // N roundings to 11-bit significands: a relative error of at most 4 * 2^-11.
  EXPECT_TRUE(torch::allclose(mean_with(Options().gradient_predivide_factor(world_size())), finite, 2e-3));
}

TEST(Ddp, WidensOnly16BitSums_DDP_07) {
  const double value = 1.0 + std::pow(2.0, -40);  // 1 in float32
  Race net(8);
  net->to(torch::kDouble);
  auto ddp = DistributedDataParallel(net, Options().allreduce_always_fp32(true).gradient_average(false));
  ddp(torch::full({8}, value, torch::kDouble)).sum().backward();
  EXPECT_TRUE(net->b.grad().eq(world_size() * value).all().item<bool>());
}

TEST(Ddp, EachBucketHasOneDtype_DDP_04_DDP_10) {
  Race half(8), bfloat16(8), single(8), twice(8);
  half->to(torch::kHalf), bfloat16->to(torch::kBFloat16), twice->to(torch::kDouble);
  torch::nn::ModuleList all(half, bfloat16, single, twice);
  auto ddp = DistributedDataParallel(all.ptr(), Options().retain_allreduce_buffers(true));
  for (int pass = 0; pass < 2; ++pass) {
    ddp->zero_grad();
    Tensor loss = torch::zeros({});
    for (auto& net : {half, bfloat16, single, twice}) {
      Race each = net;
      loss = loss + each(torch::full({8}, rank() + pass).to(each->a.scalar_type())).to(torch::kFloat).sum();
    }
    loss.backward();
    const Tensor mean =
        torch::full({8}, world_size() * pass + world_size() * (world_size() - 1) / 2, torch::kFloat) * (1.0 / world_size());
    for (auto& net : {half, bfloat16, single, twice}) {
      // The sum is a small whole number, exact in bfloat16; its product with 1 / n is rounded once, by 2^-9.
      EXPECT_TRUE(torch::allclose(net->b.grad().to(torch::kFloat), mean, 0x1p-8, 0));
    }
    EXPECT_EQ(ddp.allreduce_buffers().size(), 4u);
  }
}

TEST(Ddp, BucketsCloseByMessageSizeOrTrigger_DDP_03_DDP_04) {
  const auto sizes_with = [](const std::function<Options(WholeNumbers&)>& options) {
    WholeNumbers net;
    auto ddp = DistributedDataParallel(net, options(net).retain_allreduce_buffers(true));
    ddp(part_of_batch(0)).sum().backward();
    std::vector<int64_t> sizes;
    for (const Tensor& buffer : ddp.allreduce_buffers()) sizes.push_back(buffer.numel());
    return sizes;
  };
  // In order of arrival: fc2's bias (2) and weight (6), fc1's bias (3) and weight (12); or weights before biases.
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options(); }), (std::vector<int64_t>{23}));
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options().message_size(1); }).size(), 4u);
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options().message_size(8); }), (std::vector<int64_t>{8, 15}));
  const auto by_trigger =
      sizes_with([](WholeNumbers& net) { return Options().message_size(1).allreduce_trigger_params({net->fc1->bias}); });
  ASSERT_EQ(by_trigger.size(), by_trigger.front() == 23 ? 1u : 2u);
  EXPECT_GE(by_trigger.front(), 11);
}

TEST(Ddp, BucketsOnACpuCloseEarlyUnlessRetained) {
  std::vector<detail::NamedTensor> params;
  for (int i = 0; i < 5; ++i) params.push_back({std::to_string(i), torch::empty({detail::kMostOnCpu / 2}, torch::kHalf)});
  const auto plan_with = [&](const Options& options) { return detail::plan_by_arrival(params, {4, 3, 2, 1, 0}, options); };
  EXPECT_EQ(plan_with(Options()), (detail::BucketPlan{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(plan_with(Options().message_size(1)).size(), 5u);
  EXPECT_EQ(plan_with(Options().retain_allreduce_buffers(true)).size(), 1u);
}

// Ranks run the branches in different orders, but all use rank 0's buckets.
TEST(Ddp, RanksAdoptTheBucketsOfRankZero_DDP_04) {
  TwoBranches net;
  net->first_branch_first = rank() % 2 == 0;
  auto ddp = DistributedDataParallel(net, Options().message_size(1).retain_allreduce_buffers(true));
  for (int pass = 0; pass < 3; ++pass) {
    ddp->zero_grad();
    ddp(torch::full({2, 4}, rank() + pass, torch::kFloat)).sum().backward();
    const float sum = static_cast<float>(2 * world_size() * (2 * pass + world_size() - 1) / 2);
    const Tensor mean = torch::full({1}, sum) * (1.0 / world_size());
    EXPECT_TRUE(net->first->weight.grad().equal(mean.expand({3, 4})));
    EXPECT_TRUE(net->second->weight.grad().equal(mean.expand({5, 4})));
    const auto buffers = ddp.allreduce_buffers();
    Tensor sizes = torch::zeros({2}, torch::kLong);
    for (size_t i = 0; i < 2; ++i) sizes[static_cast<int64_t>(i)] = buffers.at(i).numel();
    for (const Tensor& others : all_gather(default_process_group(), sizes, "sizes")) EXPECT_TRUE(others.equal(sizes));
  }
}

TEST(Ddp, StartsWithTheStateOfRankZero_DDP_02) {
  for (const bool buffers : {true, false}) {
    WholeNumbers net;
    {
      const torch::NoGradGuard no_grad;
      for (auto& param : net->parameters()) param.add_(rank());
    }
    net->counter.add_(rank());
    auto ddp = DistributedDataParallel(net, Options().broadcast_buffers(buffers));
    expect_equal(ddp.parameters(), WholeNumbers()->parameters());
    EXPECT_EQ(net->counter.item<int64_t>(), buffers ? 7 : 7 + rank());
  }
}

TEST(Ddp, AcceptsHoldersPointersAndHandles) {
  const Tensor x = part_of_batch(0);
  WholeNumbers holder;
  auto pointer = std::make_shared<apex::testing::WholeNumbersImpl>();
  apex::testing::WholeNumbersImpl module;
  auto of_holder = DistributedDataParallel(holder);
  auto of_pointer = DistributedDataParallel(pointer);
  auto of_module = DistributedDataParallel(module);
  auto of_temporary = DistributedDataParallel(WholeNumbers());
  torch::nn::Sequential sequence(WholeNumbers{});
  auto of_sequence = DistributedDataParallel(sequence);
  static_assert(std::is_same_v<decltype(of_holder.module()), WholeNumbers&>);
  static_assert(std::is_same_v<decltype(of_module.module()), apex::testing::WholeNumbersImpl&>);
  auto moved = std::move(of_temporary);
  const Tensor expected = WholeNumbers()(x);
  for (const Tensor& output :
       {of_holder(x), of_pointer(x), of_module(x), moved(x), of_holder->forward(x), of_pointer->forward(x),
        of_module->forward(x), moved->forward(x), of_sequence(x), of_sequence->forward(x)}) {
    EXPECT_TRUE(output.equal(expected));
  }
  of_module(x).sum().backward();
  expect_equal(gradients_of(module), mean_of(joined_gradients()));
}

TEST(Ddp, CountsASharedParameterOnce) {
  apex::testing::Tied net;
  auto ddp = DistributedDataParallel(net, Options().retain_allreduce_buffers(true));
  for (int pass = 0; pass < 2; ++pass) {
    ddp->zero_grad();
    ddp(torch::full({1, 3}, rank() + 1, torch::kFloat)).sum().backward();
    ASSERT_EQ(ddp.allreduce_buffers().size(), 1u);
    EXPECT_EQ(ddp.allreduce_buffers()[0].numel(), 9);
  }
}

TEST(Ddp, KeepsTheMemoryOrderOfParameters) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 3, 2).bias(false));
  conv->to(torch::kFloat);
  {
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(torch::arange(48, torch::kFloat).view({3, 4, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
  }
  auto ddp = DistributedDataParallel(conv);
  const auto input_of = [](int of_rank) {
    return (torch::arange(4 * 9, torch::kFloat).view({1, 4, 3, 3}) + of_rank).contiguous(at::MemoryFormat::ChannelsLast);
  };
  std::vector<Tensor> inputs;
  for (int other = 0; other < world_size(); ++other) inputs.push_back(input_of(other));
  for (int pass = 0; pass < 2; ++pass) {
    conv->zero_grad();
    ddp(input_of(rank())).sum().backward();
    EXPECT_TRUE(conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
    const Tensor weight = conv->weight.detach().clone().requires_grad_();
    torch::conv2d(torch::cat(inputs), weight).sum().backward();
    expect_equal({conv->weight.grad()}, mean_of({weight.grad()}));
  }
}

TEST(Ddp, SeveralGroupsShareBucketsRoundRobin_DDP_11) {
  train_with(Options().message_size(1).num_allreduce_streams(2));
  std::vector<int> ranks(static_cast<size_t>(world_size()));
  for (int i = 0; i < world_size(); ++i) ranks[static_cast<size_t>(i)] = i;
  const std::vector<ProcessGroup> groups{new_group(ranks), new_group(ranks)};
  const auto before = groups[1]->getSequenceNumberForGroup();
  train_with(Options().message_size(1).num_allreduce_streams(2).allreduce_communicators(groups));
  EXPECT_EQ(groups[1]->getSequenceNumberForGroup() - before, 6u) << "two of four buckets in each of three passes";
}

}  // namespace
}  // namespace apex::parallel
