#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>

#include <functional>

#include <apex_cpp/parallel/processes/collectives.h>

#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

class OfDtype : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(OfDtype, HasTheBitsOfFusedAdamIfSumsAreExact) {
  const Tensors params = make_params(GetParam());
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  for (int step = 0; step < 12; ++step) {
    backward(params, step);
    optimizer.step();
    one.step(sums_of_grads(params, step));
    ASSERT_TRUE(same_bytes(params, one.params())) << "step " << step;
  }
}

TEST_P(OfDtype, HasTheBitsOfFusedAdamWithOneBucketAndNoOverlap) {
  const Tensors params = make_params(GetParam());
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets().bucket_cap_mb(100).overlap_grad_sync(false));
  for (int step = 0; step < 3; ++step) {
    backward(params, step);
    optimizer.step();
    one.step(sums_of_grads(params, step));
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
}

TEST_P(OfDtype, KeepsOnlyItsShardOfTheState) {
  const Tensors params = make_params(GetParam());
  int64_t elements = 0, padded = 0;
  for (const auto& param : params) elements += param.numel(), padded += (param.numel() + 31) / 32 * 32;
  DistributedFusedAdam optimizer(params, small_buckets().bucket_cap_mb(100));
  backward(params, 0);
  optimizer.step();
  const int64_t each = GetParam() == at::kFloat ? 8 : 12;  // float32 parameters are their own masters
  // One bucket: a parameter starts at a multiple of 32 elements, and a shard has numel / ranks, rounded up to a multiple of 64.
  const int64_t shard = (padded + 63) / 64;
  EXPECT_LE(optimizer.state_bytes(), each * 64 * ((shard + world_size() - 1) / world_size()));
  at::Tensor total = at::full({1}, optimizer.state_bytes(), at::kLong);
  parallel::all_reduce(parallel::default_process_group(), total, "summing");
  EXPECT_EQ(total.item<int64_t>(), each * elements);
}

INSTANTIATE_TEST_SUITE_P(DistributedFusedAdam, OfDtype, ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& each) { return c10::toString(each.param); });

TEST(DistributedFusedAdam, AveragesOverRanks) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets().average_grad_sync(true));
  for (int step = 0; step < 3; ++step) {
    backward(params, step);
    optimizer.step();
    Tensors means = sums_of_grads(params, step);
    for (auto& mean : means) mean.div_(world_size());
    one.step(means);
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
}

// Differences of eighths are exact.
TEST(DistributedFusedAdam, ARankWithoutABatchMayLeaveOutItsPass) {
  for (const bool overlaps : {true, false}) {
    const Tensors params = make_params(at::kHalf);
    OneProcess one(params, of_one_process());
    DistributedFusedAdam optimizer(params, small_buckets().overlap_grad_sync(overlaps));
    for (int step = 0; step < 4; ++step) {
      const int without = step % world_size();
      if (rank() != without) backward(params, step);
      optimizer.step();
      Tensors sums = sums_of_grads(params, step);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] - grad_of(params[i], i, without, step);
      one.step(sums);
      ASSERT_TRUE(same_bytes(params, one.params())) << overlaps << ", step " << step;
    }
  }
}

TEST(DistributedFusedAdam, StartsWithTheValuesOfRank0) {
  const Tensors params = make_params(at::kHalf, /*seed=*/rank() + 1);
  DistributedFusedAdam optimizer(params, small_buckets());
  EXPECT_TRUE(same_bytes(params, make_params(at::kHalf, 1)));
}

TEST(DistributedFusedAdam, RemovesGradientsFromParametersDuringBackward) {
  const Tensors params = make_params(at::kHalf);
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  for (const auto& param : params) EXPECT_FALSE(param.grad().defined());
  DistributedFusedAdam late(make_params(at::kHalf), small_buckets().overlap_grad_sync(false));
  const Tensors kept = late.param_groups()[0].params();
  backward(kept, 0);
  for (const auto& param : kept) EXPECT_TRUE(param.grad().defined());
  late.step();
  for (const auto& param : kept) EXPECT_FALSE(param.grad().defined());
  optimizer.step();
}

TEST(DistributedFusedAdam, AccumulatesOverBackwardPasses) {
  const Tensors params = make_params(at::kFloat), sent_once = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets()), other(sent_once, small_buckets());
  for (int step = 0; step < 6; step += 3) {
    for (int pass = 0; pass < 3; ++pass) backward(params, step + pass);
    optimizer.step();
    {
      const auto guard = other.no_sync();
      backward(sent_once, step);
      backward(sent_once, step + 1);
      for (const auto& param : sent_once) ASSERT_TRUE(param.grad().defined());
    }
    backward(sent_once, step + 2);
    other.step();
    Tensors sums = sums_of_grads(params, step);
    for (int pass = 1; pass < 3; ++pass) {
      const Tensors more = sums_of_grads(params, step + pass);
      for (size_t i = 0; i < sums.size(); ++i) sums[i].add_(more[i]);
    }
    one.step(sums);
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
  EXPECT_TRUE(same_bytes(sent_once, one.params()));
}

TEST(DistributedFusedAdam, StepsParametersWithAGradientOnAnyRank) {
  const Tensors params = make_params(at::kHalf);
  const Tensors before = copies_of(params);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  // Parameter 0 has a gradient on rank 1 only; parameter 3 has none on any rank until the third step.
  const auto wants = [](int step, size_t i, int of_rank) { return i == 0 ? of_rank == 1 : i != 3 || step >= 2; };
  for (int step = 0; step < 4; ++step) {
    backward(params, step, [&](size_t i) { return wants(step, i, rank()); });
    optimizer.step();
    Tensors grads = sums_of_grads(params, step);
    grads[0] = grad_of(params[0], 0, 1, step);
    if (step < 2) grads[3] = at::Tensor();
    one.step(grads);
    EXPECT_EQ(same_bytes(params[3], before[3]), step < 2);
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
  EXPECT_EQ(optimizer.steps_taken(), 4);
}

TEST(DistributedFusedAdam, CountsTiedParametersOnceAndSkipsFrozenOnes) {
  Tensors params = make_params(at::kHalf);
  params[4].requires_grad_(false);
  const Tensors before = copies_of(params);
  OneProcess one(params, of_one_process());
  Tensors listed = params;
  listed.push_back(params[0]);
  DistributedFusedAdam optimizer(listed, small_buckets());
  ASSERT_EQ(optimizer.param_groups()[0].params().size(), params.size());
  for (int step = 0; step < 4; ++step) {
    if (step == 2) params[4].requires_grad_(true);
    backward(params, step, [&](size_t i) { return params[i].requires_grad(); });
    optimizer.step();
    Tensors grads = sums_of_grads(params, step);
    if (step < 2) grads[4] = at::Tensor();
    one.step(grads);
    EXPECT_EQ(same_bytes(params[4], before[4]), step < 2);
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
}

// At the end of that pass it gets a place in the buckets, whichever others have gradients.
TEST(DistributedFusedAdam, AnUnfrozenParameterMayBeTheOnlyOneWithAGradient) {
  const Tensors params = make_params(at::kFloat);
  params[4].requires_grad_(false);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  for (int step = 0; step < 3; ++step) {
    if (step == 1) params[4].requires_grad_(true);
    const auto wants = [&](size_t i) { return step == 1 ? i == 4 : params[i].requires_grad(); };
    backward(params, step, wants);
    optimizer.step();
    Tensors grads = sums_of_grads(params, step);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!wants(i)) grads[i] = at::Tensor();
    }
    one.step(grads);
    EXPECT_TRUE(same_bytes(params, one.params())) << "step " << step;
  }
}

TEST(DistributedFusedAdam, SupportsOptionsPerGroup) {
  const Tensors params = make_params(at::kBFloat16), more = make_params(at::kFloat, 5);
  OneProcess one(params, of_one_process()), other(more, of_one_process(0.5));
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  optimizer.step();
  one.step(sums_of_grads(params, 0));
  optimizer.add_param_group({more, std::make_unique<optimizers::FusedAdamOptions>(of_one_process(0.5))});
  Tensors all = params;
  all.insert(all.end(), more.begin(), more.end());
  for (int step = 1; step < 4; ++step) {
    backward(all, step);
    optimizer.step();
    const Tensors sums = sums_of_grads(all, step);
    one.step({sums.begin(), sums.begin() + static_cast<int64_t>(params.size())});
    other.step({sums.begin() + static_cast<int64_t>(params.size()), sums.end()});
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
  EXPECT_TRUE(same_bytes(more, other.params()));
  EXPECT_EQ(optimizer.steps_taken(0), 4);
  EXPECT_EQ(optimizer.steps_taken(1), 3);
}

TEST(DistributedFusedAdam, WithoutMastersStepsThe16BitParameters) {
  const Tensors params = make_params(at::kHalf), alone = copies_of(params);
  for (const auto& param : alone) at::Tensor(param).requires_grad_();
  optimizers::FusedAdam one(alone, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets().store_params(false));
  for (int step = 0; step < 4; ++step) {
    backward(params, step);
    optimizer.step();
    for (size_t i = 0; i < alone.size(); ++i) alone[i].mutable_grad() = grad_sum_of(alone[i], i, step);
    one.step();
  }
  EXPECT_TRUE(same_bytes(params, alone));
}

/// Compares steps with those of one process. Before the third, `write` writes to the parameters and to the masters of the
/// other.
void expect_written_weights_to_be_used(const std::function<void(const Tensors& params, const Tensors& masters)>& write) {
  const Tensors params = make_params(at::kHalf);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      const at::NoGradGuard no_grad;
      write(params, one.masters());
    }
    backward(params, step);
    optimizer.step();
    one.step(sums_of_grads(params, step));
  }
  EXPECT_TRUE(same_bytes(params, one.params()));
}

// The other elements keep the masters' lower bits.
TEST(DistributedFusedAdam, UsesWeightsWrittenByTheProgram) {
  expect_written_weights_to_be_used([](const Tensors& params, const Tensors& masters) {
    params[3][17] = 0.5;
    masters[3][17] = 0.5;
  });
}

// Such writes do not change a version counter. Samples show the one to parameter 0, and then all values are compared: of the
// 301 of parameter 3 every third is a sample.
TEST(DistributedFusedAdam, UsesWeightsWrittenThroughData) {
  expect_written_weights_to_be_used([](const Tensors& params, const Tensors& masters) {
    params[3].data()[1] = 0.5;
    params[0].data().mul_(-1);
    masters[3][1] = 0.5;
    masters[0].copy_(params[0].to(at::kFloat));
  });
}

TEST(DistributedFusedAdam, CommunicatesInOtherDtypes) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  // These gradients are exact in bfloat16; parameters are the masters rounded to bfloat16.
  DistributedFusedAdam optimizer(
      params, small_buckets().grad_sync_dtype(at::kBFloat16).param_sync_dtype(at::kBFloat16).dtype(at::kFloat));
  for (int step = 0; step < 4; ++step) {
    backward(params, step);
    optimizer.step();
    one.step(sums_of_grads(params, step));
  }
  for (size_t i = 0; i < params.size(); ++i) {
    EXPECT_TRUE(same_bytes(params[i], one.masters()[i].detach().to(at::kBFloat16).to(at::kFloat)));
  }
}

TEST(DistributedFusedAdam, KeepsMomentsIn16Bits) {
  const Tensors params = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets().dtype(at::kBFloat16)), wide(make_params(at::kFloat), small_buckets());
  backward(params, 0);
  optimizer.step();
  backward(wide.param_groups()[0].params(), 0);
  wide.step();
  EXPECT_EQ(2 * optimizer.state_bytes(), wide.state_bytes());
  EXPECT_TRUE(same_on_all_ranks(params));
  const Tensors others = make_params(at::kFloat);
  DistributedFusedAdam other(others, small_buckets().moment_storage(apex::optimizers::MomentStorage::bfloat16));
  backward(others, 0);
  other.step();
  for (int step = 1; step < 4; ++step) {
    backward(params, step);
    optimizer.step();
    backward(others, step);
    other.step();
  }
  EXPECT_TRUE(same_bytes(others, params));
}

TEST(DistributedFusedAdam, FinishesParamSyncOnRequest) {
  const Tensors params = make_params(at::kHalf);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets().overlap_param_sync(true));
  for (int step = 0; step < 3; ++step) {
    optimizer.finish_param_sync();
    backward(params, step);
    optimizer.step();
    one.step(sums_of_grads(params, step));
  }
  EXPECT_NE(message_of([&] { backward(params, 3); }).find("finish_param_sync()"), std::string::npos);
  optimizer.finish_param_sync();
  EXPECT_TRUE(same_bytes(params, one.params()));
}

// The values under way would overwrite them, and the next step would take them for the program's.
TEST(DistributedFusedAdam, WeightsWrittenBeforeFinishParamSyncAreAnError) {
  const Tensors params = make_params(at::kHalf);
  DistributedFusedAdam optimizer(params, small_buckets().overlap_param_sync(true));
  backward(params, 0);
  optimizer.step();
  optimizer.finish_param_sync();
  params[3].detach().fill_(0.25);
  backward(params, 1);
  optimizer.step();
  params[3].detach().fill_(0.5);
  const Tensors before = copies_of(params);
  for (int time = 0; time < 2; ++time) {
    const std::string message = message_of([&] { optimizer.finish_param_sync(); });
    EXPECT_NE(message.find("parameter 3, of shape [301], was written or replaced"), std::string::npos) << message;
    EXPECT_TRUE(same_bytes(params, before));
  }
}

TEST(DistributedFusedAdam, ZeroGradDropsAccumulatedGradients) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 5, [](size_t i) { return i % 2 == 0; });
  optimizer.zero_grad();
  backward(params, 0);
  optimizer.step();
  one.step(sums_of_grads(params, 0));
  EXPECT_TRUE(same_bytes(params, one.params()));
}

torch::nn::Sequential make_net(at::ScalarType dtype) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(16, 33), torch::nn::Tanh(), torch::nn::Linear(33, 5));
  net->to(dtype);
  return net;
}

Tensors trained(at::ScalarType dtype, int steps) {
  auto net = make_net(dtype);
  DistributedFusedAdam optimizer(net->parameters(), DistributedFusedAdamOptions(1e-3).bucket_cap_mb(0.001));
  auto generator = at::detail::createCPUGenerator(100 + rank());
  for (int step = 0; step < steps; ++step) {
    const at::Tensor x = at::randn({4, 16}, generator, at::kFloat).to(dtype);
    net->forward(x).to(at::kFloat).square().mean().backward();
    optimizer.step();
  }
  return copies_of(net->parameters());
}

TEST(DistributedFusedAdam, WeightsAreEqualOnAllRanks) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) EXPECT_TRUE(same_on_all_ranks(trained(dtype, 40)));
}

TEST(DistributedFusedAdam, HasTheSameBitsFromRunToRun) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) EXPECT_TRUE(same_bytes(trained(dtype, 20), trained(dtype, 20)));
}

// ---- saving ----

TEST(DistributedFusedAdam, SavesTheSameAsFusedAdam) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  const auto some = [](size_t i) { return i != 5; };  // parameter 5 has no state
  for (int step = 0; step < 3; ++step) {
    backward(params, step, some);
    optimizer.step();
    Tensors sums = sums_of_grads(params, step);
    sums[5] = at::Tensor();
    one.step(sums);
  }
  const std::string archive = from_rank_0(saved(optimizer));
  optimizers::FusedAdam copy(one.masters(), of_one_process(0.5));
  load(copy, archive);
  ASSERT_EQ(copy.state().size(), one.optimizer().state().size());
  for (const auto& item : one.optimizer().state()) {
    const auto& a = static_cast<const optimizers::FusedAdamParamState&>(*item.second);
    const auto& b = static_cast<const optimizers::FusedAdamParamState&>(*copy.state().at(item.first));
    EXPECT_TRUE(same_bytes(a.exp_avg, b.exp_avg));
    EXPECT_TRUE(same_bytes(a.exp_avg_sq, b.exp_avg_sq));
  }
  EXPECT_EQ(copy.steps_taken(), 3);
  EXPECT_EQ(copy.param_groups()[0].options().get_lr(), 0.01);
}

TEST(DistributedFusedAdam, ResumesFromASavedState) {
  const Tensors params = make_params(at::kHalf), resumed = make_params(at::kHalf, 9);
  DistributedFusedAdam optimizer(params, small_buckets());
  for (int step = 0; step < 3; ++step) {
    backward(params, step);
    optimizer.step();
  }
  DistributedFusedAdam other(resumed, small_buckets(0.5).bucket_cap_mb(1));
  load(other, from_rank_0(saved(optimizer)));
  for (size_t i = 0; i < params.size(); ++i) resumed[i].detach().copy_(params[i].detach());
  for (int step = 3; step < 6; ++step) {
    backward(params, step);
    optimizer.step();
    backward(resumed, step);
    other.step();
  }
  EXPECT_TRUE(same_bytes(params, resumed));
}

TEST(DistributedFusedAdam, ResumesWithFrozenParametersOfAnyShape) {
  const Tensors params = make_params(at::kHalf), resumed = make_params(at::kHalf);
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  optimizer.step();
  for (const at::Tensor& param : resumed) param.set_requires_grad(&param == &resumed[3]);
  DistributedFusedAdam other(resumed, small_buckets());
  load(other, from_rank_0(saved(optimizer)));
  load(other, from_rank_0(saved(other)));
  for (size_t i = 0; i < params.size(); ++i) {
    resumed[i].detach().copy_(params[i].detach());
    resumed[i].set_requires_grad(true);
  }
  for (int step = 1; step < 3; ++step) {
    backward(params, step);
    optimizer.step();
    backward(resumed, step);
    other.step();
  }
  EXPECT_TRUE(same_bytes(params, resumed));
}

TEST(DistributedFusedAdam, TheArchiveOfAnotherRankThanRank0IsAnError) {
  const auto archive_of_rank_1 = [](const DistributedFusedAdam& optimizer) {
    return parallel::gather_strings(parallel::default_process_group(), saved(optimizer), "sending archives").at(1);
  };
  const Tensors params = make_params(at::kFloat), others = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets()), other(others, small_buckets(0.5));
  optimizers::FusedAdam fused(copies_of(params), of_one_process(0.5));
  const std::string before = archive_of_rank_1(optimizer);
  backward(params, 0);
  optimizer.step();
  const std::string after = archive_of_rank_1(optimizer);
  for (optimizers::FusedAdam* each : {static_cast<optimizers::FusedAdam*>(&other), &fused}) {
    const std::string message = message_of([&] { load(*each, after); });
    EXPECT_NE(message.find("saved on rank 1 of a sharded optimizer"), std::string::npos) << message;
    EXPECT_EQ(each->param_groups()[0].options().get_lr(), 0.5);
    EXPECT_EQ(each->steps_taken(), 0);
    load(*each, before);  // rank 0's archive has no states either
    EXPECT_EQ(each->param_groups()[0].options().get_lr(), 0.01);
  }
}

// The state of a vector would fit a matrix of such rows, once for each row.
TEST(DistributedFusedAdam, TheStateOfAParameterOfAnotherShapeIsAnError) {
  const Tensors params{at::ones({3}).requires_grad_()}, others{at::ones({2, 3}).requires_grad_()};
  DistributedFusedAdam optimizer(params, small_buckets()), other(others, small_buckets(0.5));
  backward(params, 0);
  optimizer.step();
  const std::string archive = from_rank_0(saved(optimizer));
  const std::string message = message_of([&] { load(other, archive); });
  EXPECT_NE(message.find("state of a parameter has shape [3], expected [2, 3]"), std::string::npos) << message;
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.5);
}

}  // namespace
}  // namespace apex::testing::sharded
