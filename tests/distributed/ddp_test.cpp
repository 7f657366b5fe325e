// DistributedDataParallel without amp. Weights, inputs and sums are small whole numbers, so that every sum is exact in float32
// in whatever order it is formed, and results compare bitwise at any number of ranks.
#include <apex_cpp/apex_C.h>
#include <apex_cpp/parallel.h>
#include <apex_cpp/parallel/ddp/bucket_plan.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

using Options = DistributedDataParallelOptions;
using apex::test::contains;
using apex::test::message_of;
using apex::testing::joined_batch;
using apex::testing::part_of_batch;
using apex::testing::rank;
using apex::testing::TwoBranches;
using apex::testing::WholeNumbers;
using apex::testing::world_size;
using torch::Tensor;

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& param : module.parameters()) gradients.push_back(param.grad().clone());
  return gradients;
}

// Those of one process that has the joined batch: of the sum over its samples, and so the sum over ranks.
std::vector<Tensor> joined_gradients(int pass = 0) {
  WholeNumbers net;
  net(joined_batch(pass)).sum().backward();
  return gradients_of(*net);
}

void expect_equal(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i << ": " << actual[i];
}

// As the mean is formed: the sum times 1 / ranks in float32.
std::vector<Tensor> mean_of(std::vector<Tensor> sums) {
  for (Tensor& sum : sums) sum = sum * (1.0 / world_size());
  return sums;
}

void train_with(const Options& options, int passes = 3) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, options);
  for (int pass = 0; pass < passes; ++pass) {
    net->zero_grad();
    ddp(part_of_batch(pass)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(pass)));
  }
}

// Upstream's tests/distributed/DDP/ddp_race_condition_test.py, for any number of ranks.
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

TEST(Ddp, GradientsAreThoseOfTheJoinedBatch) {
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

TEST(Ddp, PredividesAlsoWithoutAverage_DDP_07) {
  for (const bool average : {true, false}) {
    WholeNumbers net;
    auto ddp = DistributedDataParallel(net, Options().gradient_predivide_factor(4.0).gradient_average(average));
    ddp(part_of_batch(0)).sum().backward();
    auto expected = joined_gradients();
    for (Tensor& each : expected) each = each * 0.25 * (average ? 4.0 / world_size() : 1.0);
    expect_equal(gradients_of(*net), expected);
  }
}

// Every rank's gradient is 60000: two of them are too much for float16.
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
  EXPECT_TRUE(torch::allclose(mean_with(Options().allreduce_always_fp32(true)), finite, 1e-3));
  // Each rounds to one of 2^11 mantissas, N times: relative 4 * 2^-11 at the most.
  EXPECT_TRUE(torch::allclose(mean_with(Options().gradient_predivide_factor(world_size())), finite, 2e-3));
}

TEST(Ddp, WidensSumsOf16BitsAlone_DDP_07) {
  const double value = 1.0 + std::pow(2.0, -40);  // 1 in float32
  Race net(8);
  net->to(torch::kDouble);
  auto ddp = DistributedDataParallel(net, Options().allreduce_always_fp32(true).gradient_average(false));
  ddp(torch::full({8}, value, torch::kDouble)).sum().backward();
  EXPECT_TRUE(net->b.grad().eq(world_size() * value).all().item<bool>());
}

TEST(Ddp, BucketsAreOfOneDtype_DDP_04_DDP_10) {
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
      EXPECT_TRUE(torch::allclose(net->b.grad().to(torch::kFloat), mean, 1e-2));  // 8 bits of bfloat16
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
  // In order of arrival: fc2's bias (2) and weight (6), fc1's bias (3) and weight (12), or weights before biases.
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options(); }), (std::vector<int64_t>{23}));
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options().message_size(1); }).size(), 4u);
  EXPECT_EQ(sizes_with([](WholeNumbers&) { return Options().message_size(8); }), (std::vector<int64_t>{8, 15}));
  const auto by_trigger =
      sizes_with([](WholeNumbers& net) { return Options().message_size(1).allreduce_trigger_params({net->fc1->bias}); });
  ASSERT_EQ(by_trigger.size(), by_trigger.front() == 23 ? 1u : 2u);
  EXPECT_GE(by_trigger.front(), 11);
}

TEST(Ddp, BucketsOnACpuCloseEarlyUnlessTheyAreShown) {
  std::vector<detail::NamedTensor> params;
  for (int i = 0; i < 5; ++i) params.push_back({std::to_string(i), torch::empty({detail::kMostOnCpu / 2}, torch::kHalf)});
  const auto plan_with = [&](const Options& options) { return detail::plan_by_arrival(params, {4, 3, 2, 1, 0}, options); };
  EXPECT_EQ(plan_with(Options()), (detail::BucketPlan{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(plan_with(Options().message_size(1)).size(), 5u);
  EXPECT_EQ(plan_with(Options().retain_allreduce_buffers(true)).size(), 1u);
}

// Ranks run the branches in different order: all take rank 0's buckets.
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

TEST(Ddp, BeginsWithTheStateOfRankZero_DDP_02) {
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

TEST(Ddp, TakesModelsAsProgramsHoldThem) {
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

// ---- which parameters take part ----

TEST(Ddp, NamesUnusedParametersOnEveryRank_BUG_23) {
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

TEST(Ddp, DelayedReductionToleratesUnusedParameters_DDP_06) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net, Options().delay_allreduce(true));
  for (int pass = 0; pass < 2; ++pass) {
    net->zero_grad();
    net->without_second = rank() > 0;
    ddp(torch::ones({1, 4})).sum().backward();
    // Rank 0 alone used it: the others' part of the mean is zero, and all have it.
    EXPECT_TRUE(net->second->weight.grad().equal(torch::ones({5, 4}) * (1.0 / world_size())));
    net->zero_grad();
    net->without_second = true;
    ddp(torch::ones({1, 4})).sum().backward();
    EXPECT_FALSE(net->second->weight.grad().defined()) << "nobody used it";
    EXPECT_TRUE(net->first->weight.grad().defined());
  }
}

TEST(Ddp, FollowsParametersThatAreFrozenAndUnfrozen_DDP_04) {
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

// A graph from before the parameter was frozen passes its gradient's hook once more.
TEST(Ddp, LeavesOutParametersFrozenAfterTheForwardPass) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net);
  const Tensor early = ddp(torch::ones({1, 4})), late = ddp(torch::ones({1, 4}));
  net->second->weight.requires_grad_(false);
  early.backward();
  ddp(torch::ones({1, 4})).backward();
  late.backward();
  EXPECT_TRUE(torch::allclose(net->first->weight.grad(), torch::full({3, 4}, 3.0)));  // means of ones, 1 / n rounded
  EXPECT_FALSE(net->second->weight.grad().defined());
}

TEST(Ddp, ConvertingTheWrappedModelIsAnError) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(0)).sum().backward();
  net->to(torch::kFloat);  // changes nothing
  ddp(part_of_batch(0)).sum().backward();
  net->fc1->weight.requires_grad_(false);
  net->to(torch::kDouble);
  const std::string message = message_of([&] { ddp(part_of_batch(0).to(torch::kDouble)); });
  EXPECT_TRUE(contains(message, "on rank " + std::to_string(rank()) +
                                    ": the parameter 'fc1.bias' was converted or moved, to"
                                    " Double on cpu"))
      << message;
}

TEST(Ddp, SparseGradientIsAnErrorWithItsName) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  auto ddp = DistributedDataParallel(table);
  const std::string message = message_of([&] { ddp(torch::tensor({1, 2})).sum().backward(); });
  EXPECT_TRUE(contains(message, "on rank " + std::to_string(rank()) + ": the gradient of 'weight' is sparse"));
}

// ---- several passes ----

TEST(Ddp, PassesAddUp) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().message_size(8));
  ddp(part_of_batch(0)).sum().backward();
  const auto first = gradients_of(*net);
  ddp(part_of_batch(1)).sum().backward();
  const auto second = mean_of(joined_gradients(1));
  // The mean that is there already is averaged once more: n equal values, times 1/n.
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), first[i] + second[i], 1e-6));
  }
}

TEST(Ddp, NoSyncLeavesSumsForTheNextPass_BUG_24) {
  for (const auto& options : {Options(), Options().message_size(1), Options().delay_allreduce(true)}) {
    WholeNumbers net;
    auto ddp = DistributedDataParallel(net, options);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      {
        auto guard = ddp.no_sync();
        ddp(part_of_batch(0)).sum().backward();
        WholeNumbers alone;
        alone(part_of_batch(0)).sum().backward();
        expect_equal(gradients_of(*net), gradients_of(*alone));
        const auto inner = ddp.no_sync();
        ddp(part_of_batch(1)).sum().backward();
      }
      ddp(part_of_batch(2)).sum().backward();
      auto sums = joined_gradients(0);
      for (int pass : {1, 2}) {
        const auto more = joined_gradients(pass);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
      }
      expect_equal(gradients_of(*net), mean_of(sums));
    }
  }
}

TEST(Ddp, AllreduceCanBeSwitched_DDP_09) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp.disable_allreduce();
  ddp.disable_allreduce();
  ddp(part_of_batch(0)).sum().backward();
  WholeNumbers alone;
  alone(part_of_batch(0)).sum().backward();
  expect_equal(gradients_of(*net), gradients_of(*alone));
  ddp.enable_allreduce();
  net->zero_grad();
  ddp(part_of_batch(1)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
}

TEST(Ddp, RetainedBuffersAreTheGradients_DDP_08) {
  for (const bool widened : {false, true}) {
    WholeNumbers net;
    auto ddp =
        DistributedDataParallel(net, Options().message_size(8).retain_allreduce_buffers(true).allreduce_always_fp32(widened));
    EXPECT_TRUE(ddp.allreduce_buffers().empty());
    ddp(part_of_batch(0)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(0)));
    for (const Tensor& buffer : ddp.allreduce_buffers()) buffer.fill_(5);
    for (const Tensor& param : net->parameters()) EXPECT_TRUE(param.grad().eq(5).all().item<bool>());
    const std::string message = message_of([&] { net(part_of_batch(1)).sum().backward(); });
    EXPECT_TRUE(contains(message, "retained allreduce buffers that are filled already"));
    net->zero_grad();
    const Tensor loss = ddp(part_of_batch(1)).sum();
    EXPECT_TRUE(ddp.allreduce_buffers().empty());
    loss.backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
  }
}

// A gradient that somebody still holds keeps its values.
TEST(Ddp, RetainedGradientsAreNotWrittenOverByTheNextPass_DDP_08) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().retain_allreduce_buffers(true));
  ddp(part_of_batch(0)).sum().backward();
  const Tensor held = net->fc1->weight.grad();
  net->zero_grad();
  ddp(part_of_batch(1)).sum().backward();
  EXPECT_TRUE(held.equal(mean_of({joined_gradients(0)[0]})[0]));
}

TEST(Ddp, SeveralGroupsTakeBucketsByTurns_DDP_11) {
  train_with(Options().message_size(1).num_allreduce_streams(2));
  std::vector<int> ranks(static_cast<size_t>(world_size()));
  for (int i = 0; i < world_size(); ++i) ranks[static_cast<size_t>(i)] = i;
  train_with(Options().message_size(1).num_allreduce_streams(2).allreduce_communicators({new_group(ranks), new_group(ranks)}));
}

TEST(Ddp, GoesOnAfterABackwardPassThatThrew) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(0)).sum().backward();
  Tensor x = part_of_batch(1).requires_grad_();
  Tensor hidden = x * 1;
  hidden.register_hook([](const Tensor&) -> void { throw std::runtime_error("thrown in a hook"); });
  EXPECT_TRUE(contains(message_of([&] { (ddp(part_of_batch(1)).sum() + hidden.sum()).backward(); }), "thrown in a hook"));
  default_process_group()->barrier()->wait();
  net->zero_grad();
  ddp(part_of_batch(2)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(2)));
}

TEST(Ddp, BackwardInsideBackwardIsAnError) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net);
  const Tensor inner = net->second(torch::ones({1, 4})).sum();
  const Tensor outer = net->first(torch::ones({1, 4}));
  outer.register_hook([&](const Tensor&) -> void { inner.backward(); });
  EXPECT_TRUE(contains(message_of([&] { outer.sum().backward(); }), "gave no gradient to 'first.weight'"));
}

// ---- misuse ----

TEST(Ddp, OptionsThatContradictEachOther_DDP_01) {
  WholeNumbers net;
  const auto message_with = [&](const Options& options) {
    try {
      DistributedDataParallel ddp(net, options);
    } catch (const c10::ValueError& error) {
      return std::string(error.what());
    }
    return std::string("no ValueError");
  };
  EXPECT_TRUE(contains(message_with(Options().shared_param(true)), "shared_param is no longer an option"));
  EXPECT_TRUE(contains(message_with(Options().num_allreduce_streams(2).delay_allreduce(true)), "num_allreduce_streams is 2"));
  EXPECT_TRUE(contains(message_with(Options().delay_allreduce(true).allreduce_trigger_params({net->fc1->bias})),
                       "allreduce_trigger_params have no effect"));
  EXPECT_TRUE(contains(message_with(Options().allreduce_communicators({default_process_group()})),
                       "there are 1 allreduce_communicators and num_allreduce_streams is 1"));
  EXPECT_TRUE(contains(message_with(Options().message_size(0)), "message_size must be positive, got 0"));
  EXPECT_TRUE(contains(message_with(Options().gradient_predivide_factor(0)), "gradient_predivide_factor must be positive"));
}

TEST(Ddp, OptionsThatDifferBetweenRanksAreAnErrorOnEach) {
  const auto message_with = [](const Options& options) {
    WholeNumbers net;
    return message_of([&] { DistributedDataParallel ddp(net, rank() == 1 ? options : Options()); });
  };
  EXPECT_TRUE(contains(message_with(Options().message_size(7)), "  rank 0: message_size 10000000\n  rank 1: message_size 7"));
  EXPECT_TRUE(contains(message_with(Options().delay_allreduce(true)), "rank 1: delay_allreduce 1"));
  EXPECT_TRUE(contains(message_with(Options().allreduce_always_fp32(true)), "rank 1: allreduce_always_fp32 1"));
  EXPECT_TRUE(contains(message_with(Options().num_allreduce_streams(2)), "rank 1: num_allreduce_streams 2"));
  EXPECT_TRUE(contains(message_with(Options().gradient_average(false)), "rank 1: gradient_average 0"));
  EXPECT_TRUE(contains(message_with(Options().gradient_predivide_factor(2)), "rank 1: gradient_predivide_factor 2"));
  EXPECT_TRUE(contains(message_with(Options().broadcast_buffers(false)), "rank 1: broadcast_buffers 0"));
}

TEST(Ddp, WrappingAParameterTwiceIsAnError) {
  WholeNumbers net;
  {
    auto ddp = DistributedDataParallel(net);
    EXPECT_TRUE(contains(message_of([&] { DistributedDataParallel again(net->fc2); }),
                         "the parameter 'weight', which is in a DistributedDataParallel already"));
    ddp(part_of_batch(0)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients()));
  }
  net->zero_grad();
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(1)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
}

TEST(Ddp, ModelsThatDifferBetweenRanksAreAnErrorOnEach) {
  const auto message_for = [](const std::function<void(WholeNumbers&)>& spoil) {
    WholeNumbers net;
    if (rank() == 1) spoil(net);
    return message_of([&] { DistributedDataParallel ddp(net); });
  };
  const std::string shape = message_for([](WholeNumbers& net) { net->fc1->bias.set_data(torch::zeros({5})); });
  EXPECT_TRUE(contains(shape, "rank 1")) << shape;
  EXPECT_TRUE(contains(shape, "'fc1.bias', shape [5]"));
  const std::string dtype = message_for([](WholeNumbers& net) { net->to(torch::kHalf); });
  EXPECT_TRUE(contains(dtype, "opt levels")) << dtype;
  EXPECT_TRUE(contains(dtype, "Half"));
  const std::string count = message_for([](WholeNumbers& net) { net->register_parameter("more", torch::zeros({1})); });
  EXPECT_TRUE(contains(count, "'more'")) << count;
  const std::string trained = message_for([](WholeNumbers& net) { net->fc2->bias.requires_grad_(false); });
  EXPECT_TRUE(contains(trained, "'fc2.bias'")) << trained;
  WholeNumbers net;
  net->register_buffer("more", torch::zeros({1}, rank() == 1 ? torch::kMeta : torch::kCPU));
  const std::string device = message_of([&] { DistributedDataParallel ddp(net); });
  EXPECT_TRUE(contains(device, "'more', shape [1], strides [1], Float, on meta")) << device;
}

// ---- the parts that stand alone ----

TEST(FlatDistCall, CallsOncePerDtypeAndAverages_PAR_01) {
  std::vector<Tensor> tensors{torch::full({2, 2}, rank(), torch::kFloat), torch::full({3}, rank(), torch::kDouble),
                              torch::full({1}, 2 * rank(), torch::kFloat)};
  int calls = 0;
  const FlatCall mean = all_reduce_mean();
  flat_dist_call(tensors, [&](const Tensor& flat) { ++calls, mean(flat); });
  EXPECT_EQ(calls, 2);
  const double expected = (world_size() - 1) / 2.0;
  EXPECT_TRUE(tensors[0].eq(expected).all().item<bool>());
  EXPECT_TRUE(tensors[1].eq(expected).all().item<bool>());
  EXPECT_TRUE(tensors[2].eq(2 * expected).all().item<bool>());
}

TEST(Reducer, AveragesWhatItIsGiven_PAR_02) {
  WholeNumbers net;
  {
    const torch::NoGradGuard no_grad;
    net->fc1->weight.add_(rank());
  }
  Reducer of_module(net);
  expect_equal(net->parameters(), WholeNumbers()->parameters());
  net(part_of_batch(0)).sum().backward();
  of_module.reduce();
  auto expected = joined_gradients(0);
  for (Tensor& each : expected) each = each / world_size();
  expect_equal(gradients_of(*net), expected);

  const Tensor grad = torch::full({3}, rank(), torch::kFloat);
  Reducer(std::vector<Tensor>{grad}).reduce();
  EXPECT_TRUE(grad.eq((world_size() - 1) / 2.0).all().item<bool>());
}

TEST(Flatten, ComesBack_PAR_03) {
  const std::vector<Tensor> tensors{torch::arange(6).view({2, 3}), torch::empty({0}, torch::kLong), torch::tensor(7)};
  const Tensor flat = apex_C::flatten(tensors);
  EXPECT_TRUE(flat.equal(torch::tensor({0, 1, 2, 3, 4, 5, 7})));
  expect_equal(apex_C::unflatten(flat, tensors), tensors);
}

}  // namespace
}  // namespace apex::parallel
