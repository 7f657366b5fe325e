// DistributedDataParallel whose ranks are threads of this process, each with its own Gloo group over one store in memory.
// ThreadSanitizer checks gradient hooks, buckets and their readers for races.
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/parallel.h>
#include <apex_cpp/parallel/processes/backends.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

namespace apex::parallel {
namespace {

using torch::Tensor;

constexpr int kRanks = 3;

// LibTorch's record of collectives, which all groups of a process share, is written without a lock. It is read at the first
// one.
const bool kHasNoRecord = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1) == 0;

ProcessGroup group_of_thread(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size = kRanks) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    detail::make_gloo({store, rank, size, std::chrono::seconds(60), "127.0.0.1"}));
  return group;
}

// The weights of all ranks are ones, so that gradients are sums of inputs: exact.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int i = 0; i < 4; ++i) weights.push_back(register_parameter("weight" + std::to_string(i), torch::ones({2, 2})));
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = torch::zeros({});
    for (const Tensor& weight : weights) sum = sum + (weight * x).sum();
    return sum;
  }
  std::vector<Tensor> weights;
};
TORCH_MODULE(Chain);

template <class Work>
void on_ranks(const Work& work) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      Chain net;
      auto ddp = DistributedDataParallel(
          net,
          DistributedDataParallelOptions().message_size(5).gradient_average(false).retain_allreduce_buffers(true).process_group(
              group_of_thread(store, rank)));
      work(rank, ddp);
    });
  }
  for (auto& rank : ranks) rank.join();
}

void expect_gradients(Chain& net, float value) {
  for (const Tensor& weight : net->weights) {
    EXPECT_TRUE(weight.grad().eq(value).all().item<bool>()) << weight.grad() << " is not " << value;
  }
}

/// Makes passes whose backward runs on a thread of its own, while another thread makes the call again and again.
template <class Call>
void pass_beside(int rank, DistributedDataParallel<Chain>& ddp, const Call& call) {
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) call();
  });
  for (int pass = 0; pass < 10; ++pass) {
    ddp->zero_grad();
    const Tensor loss = ddp(torch::full({2, 2}, static_cast<float>(rank + pass)));
    std::thread([&] { loss.backward(); }).join();
    expect_gradients(ddp.module(), static_cast<float>(kRanks * pass + kRanks * (kRanks - 1) / 2));
  }
  done = true;
  watcher.join();
}

TEST(DdpThreads, PassesOnAnyThreadWhileOthersReadTheBuckets) {
  on_ranks([](int rank, auto& ddp) {
    std::atomic<size_t> seen{0};
    pass_beside(rank, ddp, [&] { seen += ddp.allreduce_buffers().size(); });
  });
}

// In this test and the next one the other thread calls one function alone: another function's lock would order its calls, too.
// It yields, because the passes would seldom get the lock otherwise.
TEST(DdpThreads, PassesOnAnyThreadWhileOthersBeginForwardPasses) {
  on_ranks([](int rank, auto& ddp) {
    pass_beside(rank, ddp, [&] {
      EXPECT_TRUE(ddp->is_training());  // each use of the model may begin a forward pass
      std::this_thread::yield();
    });
  });
}

TEST(DdpThreads, PassesOnAnyThreadWhileOthersAskWhichRanksOverflowed) {
  on_ranks([](int rank, auto& ddp) {
    const Tensor weight = ddp.module()->weights[0];
    const auto sync = amp::detail::grad_sync_of(weight);
    pass_beside(rank, ddp, [&] {
      EXPECT_TRUE(sync->ranks_with_nonfinite(weight).empty());
      std::this_thread::yield();
    });
  });
}

TEST(DdpThreads, SeveralThreadsAccumulateWithoutReduction) {
  on_ranks([](int rank, auto& ddp) {
    constexpr int kThreads = 4;
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      {
        const auto guard = ddp.no_sync();
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&] { ddp(torch::full({2, 2}, static_cast<float>(rank))).backward(); });
        }
        for (auto& thread : threads) thread.join();
      }
      ddp(torch::ones({2, 2})).backward();
      expect_gradients(ddp.module(), static_cast<float>(kRanks + kThreads * kRanks * (kRanks - 1) / 2));
    }
  });
}

TEST(GroupsOfThreads, HearOfFailuresWithoutADefaultGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, kRanks);
  ASSERT_FALSE(is_initialized());
  EXPECT_FALSE(detail::any_failure(group));
  store->set("failed", std::vector<uint8_t>{1});
  EXPECT_TRUE(detail::any_failure(group));
}

// The gradient on a rank is its number plus 1: 2 on average.
TEST(ShardedThreads, SeveralThreadsSendBuckets) {
  const auto parameters = [] {
    std::vector<Tensor> params;
    for (int i = 0; i < 8; ++i) params.push_back(torch::ones({2, 2}).requires_grad_());
    return params;
  };
  const auto expected = parameters();
  optimizers::FusedAdam whole(expected, optimizers::FusedAdamOptions(0.25));
  for (const Tensor& param : expected) param.mutable_grad() = torch::full({2, 2}, 2.0);
  whole.step();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto train = [&](int rank) {
    const auto params = parameters();
    const auto options = DistributedFusedAdamOptions(0.25).bucket_cap_mb(1e-5).process_group(group_of_thread(store, rank));
    DistributedFusedAdam optimizer(params, options);
    std::vector<std::thread> threads;
    for (const size_t first : {0, 1}) {
      threads.emplace_back([&, first] {
        for (size_t i = first; i < params.size(); i += 2) (params[i] * (rank + 1)).sum().backward();
      });
    }
    for (auto& thread : threads) thread.join();
    optimizer.step();
    for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(torch::equal(params[i], expected[i])) << params[i];
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(train, rank);
  for (auto& rank : ranks) rank.join();
}

// The backward pass has ended on its thread; the optimizer's lock alone orders it before the call. The bucket waits for the
// other parameter's gradient.
TEST(ShardedThreads, AnotherThreadEndsAbandonsAndDropsPasses) {
  const auto group = group_of_thread(c10::make_intrusive<c10d::HashStore>(), 0, /*size=*/1);
  const std::vector<Tensor> params{torch::ones({2, 2}).requires_grad_(), torch::ones({2, 2}).requires_grad_()};
  DistributedFusedAdam optimizer(params, DistributedFusedAdamOptions(0.25).process_group(group));
  const auto shards = optimizer.grad_shards();
  const std::vector<std::function<void()>> calls{[&] { shards->end_pass(1.0); }, [&] { shards->abandon_pass(); },
                                                 [&] { shards->drop(); }};
  for (size_t i = 0; i < 4 * calls.size(); ++i) {
    std::atomic<bool> ended{false};
    std::thread backward([&] {
      (params[0] * 2).sum().backward();
      ended.store(true, std::memory_order_relaxed);
    });
    while (!ended.load(std::memory_order_relaxed)) std::this_thread::yield();
    calls[i % calls.size()]();
    backward.join();
    EXPECT_FALSE(shards->has_open_grads()) << i;
  }
}

}  // namespace
}  // namespace apex::parallel
