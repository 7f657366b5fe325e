// CUDA tensors over Gloo, which copies them through the host, and over NCCL, which needs one GPU per rank.
#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>

#include <apex_cpp/parallel.h>
#include <apex_cpp/parallel/processes/backends.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <string>

#include "tests/distributed/ddp_models.h"
#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

using parallel::ProcessGroup;

// The reason why this machine cannot run `backend`; empty if it can.
std::string missing_for(const std::string& backend) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  if (gpus == 0) return "no GPU on this machine";
  if (backend == "gloo") return "";
  if (gpus < world_size()) return "NCCL wants a GPU for each rank, and there are " + std::to_string(gpus);
  return parallel::detail::name_of_gpu(rank()).empty() ? "this build has no NCCL" : "";
}

// The ranks of the default group, which uses Gloo. With "cpu:gloo,cuda:nccl" CPU tensors still use Gloo.
ProcessGroup group_over(const std::string& backend, const std::string& name) {
  const ProcessGroup all = parallel::default_process_group();
  if (backend == "gloo") return all;
  using Backends = c10d::ProcessGroup::BackendType;
  parallel::detail::take_gpu(rank());
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, all->getStore());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank(), world_size());
  group->setDefaultBackend(backend == "nccl" ? Backends::NCCL : Backends::GLOO);
  if (backend != "nccl") group->setBackend(at::kCPU, Backends::GLOO, all->getBackend(at::kCPU));
  group->setBackend(at::kCUDA, Backends::NCCL,
                    parallel::detail::make_nccl({store, rank(), world_size(), std::chrono::seconds(60), ""}));
  group->setGroupName(name);
  return group;
}

class OnCuda : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = missing_for(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
    static int made = 0;
    group = group_over(GetParam(), "on_cuda_" + std::to_string(made++));
  }
  // A rank that has its results must not destroy NCCL while another still waits.
  void TearDown() override {
    if (group) parallel::default_process_group()->barrier()->wait();
  }
  // The current device, which NCCL uses.
  static at::Device device() { return at::empty({0}, at::kCUDA).device(); }

  ProcessGroup group;
};

TEST_P(OnCuda, CollectivesHaveTheValuesOfAllRanks) {
  auto sum = at::full({3}, rank() + 1, at::kFloat).to(device());
  parallel::all_reduce(group, sum, "summing");
  EXPECT_TRUE(sum.cpu().equal(at::full({3}, world_size() * (world_size() + 1) / 2, at::kFloat)));
  auto sent = at::full({2}, rank(), at::kHalf).to(device());
  const auto all = parallel::all_gather(group, sent, "gathering");
  for (int other = 0; other < world_size(); ++other) EXPECT_TRUE(all[other].cpu().equal(at::full({2}, other, at::kHalf)));
  parallel::broadcast(group, sent, world_size() - 1, "broadcasting");
  EXPECT_TRUE(sent.cpu().equal(at::full({2}, world_size() - 1, at::kHalf)));
  const auto texts = parallel::gather_strings(group, std::string(rank(), 'x'), "gathering");
  for (int other = 0; other < world_size(); ++other) EXPECT_EQ(texts[other], std::string(other, 'x'));
}

TEST_P(OnCuda, DistributedDataParallelAveragesGradients) {
  WholeNumbers model, one;
  model->to(device());
  auto ddp = parallel::DistributedDataParallel(model, parallel::DistributedDataParallelOptions().process_group(group));
  ddp(part_of_batch(0).to(device())).sum().backward();
  one(joined_batch(0)).sum().backward();
  for (size_t i = 0; i < one->parameters().size(); ++i) {
    const at::Tensor mean = one->parameters()[i].grad() / world_size();
    // Sums of small whole numbers are exact; the division rounds by a few units of 2^-24.
    EXPECT_TRUE(at::allclose(model->parameters()[i].grad().cpu(), mean, 1e-6, 0)) << i;
  }
}

TEST_P(OnCuda, SyncBatchNormNormalizesTheJoinedBatch) {
  parallel::SyncBatchNorm norm(parallel::SyncBatchNormOptions(3).process_group(group));
  norm->to(device());
  torch::nn::BatchNorm1d one(3);
  Tensors batches;
  for (int other = 0; other < world_size(); ++other) batches.push_back(eighths({4, 3, 5}, 30 + other));
  const at::Tensor y = norm(batches[rank()].to(device())).cpu();
  const at::Tensor joined = one(at::cat(batches));
  // Values are below 4, each after a handful of roundings by 2^-24.
  EXPECT_TRUE(at::allclose(y, joined.narrow(0, 4 * rank(), 4), 0, 1e-5));
  EXPECT_TRUE(at::allclose(norm->running_var.cpu(), one->running_var, 1e-5, 0));
}

Tensors on(at::Device device, const Tensors& tensors) {
  Tensors moved;
  for (const auto& tensor : tensors) moved.push_back(tensor.detach().to(device).requires_grad_(tensor.requires_grad()));
  return moved;
}

TEST_P(OnCuda, DistributedFusedAdamHasTheBitsOfFusedAdam) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensors params = on(device(), make_params(dtype));
    OneProcess one(params, optimizers::FusedAdamOptions(0.01));
    DistributedFusedAdam optimizer(
        params, DistributedFusedAdamOptions(0.01).bucket_cap_mb(0.001).average_grad_sync(false).process_group(group));
    for (int step = 0; step < 3; ++step) {
      Tensors sums;
      at::Tensor loss = at::zeros({}, device());
      for (size_t i = 0; i < params.size(); ++i) {
        loss = loss + (params[i] * grad_of(params[i], i, rank(), step).to(params[i])).sum();
        sums.push_back(grad_sum_of(params[i], i, step).to(device()));
      }
      loss.backward();
      optimizer.step();
      one.step(sums);
    }
    EXPECT_TRUE(same_bytes(on(at::kCPU, params), on(at::kCPU, one.params()))) << dtype;
  }
}

TEST_P(OnCuda, ShardsInFewBytesHaveTheBitsOfFusedAdam) {
  const Tensors params = on(device(), make_params(at::kBFloat16)), alone = on(device(), make_params(at::kBFloat16));
  const auto masters = optimizers::MasterStorage::remainder8;
  const auto moments = optimizers::MomentStorage::int8;
  optimizers::FusedAdam one(alone, of_one_process().master_storage(masters).moment_storage(moments));
  DistributedFusedAdam optimizer(params, small_buckets().process_group(group).master_storage(masters).moment_storage(moments));
  for (int step = 0; step < 3; ++step) {
    at::Tensor loss = at::zeros({}, device());
    for (size_t i = 0; i < params.size(); ++i) {
      loss = loss + (params[i] * grad_of(params[i], i, rank(), step).to(params[i])).sum();
      alone[i].mutable_grad() = grad_sum_of(params[i], i, step).to(device());
    }
    loss.backward();
    optimizer.step();
    one.step();
  }
  EXPECT_TRUE(same_bytes(on(at::kCPU, params), on(at::kCPU, alone)));
}

INSTANTIATE_TEST_SUITE_P(Backends, OnCuda, ::testing::Values("gloo", "nccl", "cpu:gloo,cuda:nccl"));

}  // namespace
}  // namespace apex::testing::sharded
