#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <vector>

#include <apex_cpp/parallel/processes/backends.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/rendezvous.h>
#include "tests/distributed/ranks.h"
#include "tests/errors.h"

namespace apex::parallel {
namespace {

using apex::test::expect_error;
using apex::testing::rank;
using apex::testing::world_size;

TEST(ProcessGroup, SumsOverRanks) {
  auto tensor = at::full({3}, rank() + 1, at::kFloat);
  all_reduce(default_process_group(), tensor, "summing");
  EXPECT_TRUE(tensor.equal(at::full({3}, world_size() * (world_size() + 1) / 2, at::kFloat)));
}

TEST(ProcessGroup, BroadcastsAndGathers) {
  auto tensor = at::full({2}, rank(), at::kHalf);
  const auto all = all_gather(default_process_group(), tensor, "gathering");
  for (int other = 0; other < world_size(); ++other) EXPECT_TRUE(all[other].equal(at::full({2}, other, at::kHalf)));
  broadcast(default_process_group(), tensor, world_size() - 1, "broadcasting");
  EXPECT_TRUE(tensor.equal(at::full({2}, world_size() - 1, at::kHalf)));
}

// A column, and rows that have another memory order on one rank alone.
TEST(ProcessGroup, ReducesAndBroadcastsTensorsOfAnyStrides) {
  const auto table = at::full({10, 2}, rank() + 1, at::kFloat), column = table.select(1, 0);
  const auto sum = at::full({10}, world_size() * (world_size() + 1) / 2, at::kFloat);
  all_reduce(default_process_group(), column, "summing");
  EXPECT_TRUE(column.equal(sum));
  EXPECT_TRUE(table.select(1, 1).equal(at::full({10}, rank() + 1, at::kFloat)));
  const auto values = at::arange(24, at::kFloat).view({2, 3, 2, 2});
  auto rows = values.add(rank() == 0 ? 0 : 100);
  if (rank() == 0) rows = rows.contiguous(at::MemoryFormat::ChannelsLast);
  broadcast(default_process_group(), rows, 0, "broadcasting");
  EXPECT_TRUE(rows.equal(values));
  EXPECT_THROW(broadcast(default_process_group(), at::zeros({1}).expand({4}), 0, "broadcasting"), c10::Error);
}

TEST(ProcessGroup, SumsOfBoolsAreTrueWhereOneIs) {
  const auto all = at::full({1}, true), none = at::full({1}, false), last = at::full({1}, rank() == world_size() - 1);
  for (const at::Tensor& each : {all, none, last}) all_reduce(default_process_group(), each, "summing");
  EXPECT_EQ(all.view(at::kByte).item<uint8_t>(), 1);
  EXPECT_EQ(none.view(at::kByte).item<uint8_t>(), 0);
  EXPECT_EQ(last.view(at::kByte).item<uint8_t>(), 1);
}

TEST(ProcessGroup, GathersStringsOfDifferentLengths) {
  const auto texts = gather_strings(default_process_group(), std::string(rank() * 3, 'x'), "gathering");
  for (int other = 0; other < world_size(); ++other) EXPECT_EQ(texts[other], std::string(other * 3, 'x'));
}

TEST(ProcessGroup, SurvivesAConnectionClosedByItsPeer) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
}

TEST(ProcessGroup, NamesTheRankThatDiffers) {
  expect_same(default_process_group(), "one\ntwo", "the list");
  const std::string list = rank() == 1 ? "one\n2" : "one\ntwo";
  expect_error<c10::ValueError>([&] { expect_same(default_process_group(), list, "the list"); },
                                {"the list: rank 1 differs from rank 0.\n  rank 0: two\n  rank 1: 2"});
}

TEST(ProcessGroup, OfSomeRanksSumsOverThoseRanks) {
  const auto group = new_group({world_size() - 1, 0});
  ASSERT_EQ(is_member(group), rank() == 0 || rank() == world_size() - 1);
  if (!is_member(group)) {
    EXPECT_THROW(or_default(group), c10::ValueError);
    EXPECT_THROW(all_reduce(group, at::ones({1}), "summing"), c10::ValueError);
    return;
  }
  EXPECT_EQ(group->getRank(), rank() == 0 ? 1 : 0);
  auto tensor = at::full({1}, rank() + 1, at::kFloat);
  all_reduce(group, tensor, "summing");
  EXPECT_EQ(tensor.item<float>(), world_size() + 1);
}

TEST(ProcessGroup, WithoutRanksOrWithUnknownRanksIsAnError) {
  EXPECT_THROW(new_group({}), c10::ValueError);
  EXPECT_THROW(new_group({0, 0}), c10::ValueError);
  EXPECT_THROW(new_group({world_size()}), c10::ValueError);
}

TEST(ProcessGroup, TakesTheInterfacesOfTheEnvironmentLikePyTorch) {
  std::vector<int> all(world_size());
  std::iota(all.begin(), all.end(), 0);
  for (const char* interfaces : {"lo", "lo,lo", ""}) {
    ::setenv("GLOO_SOCKET_IFNAME", interfaces, 1);
    const auto group = new_group(all);
    ::unsetenv("GLOO_SOCKET_IFNAME");
    for (int repeat = 0; repeat < 3; ++repeat) {  // groups with several devices alternate between them
      auto tensor = at::ones({3});
      all_reduce(group, tensor, "summing");
      EXPECT_TRUE(tensor.eq(world_size()).all().item<bool>()) << interfaces;
    }
  }
}

TEST(ProcessGroup, AnAddressThatIsNotAHostAndAPortIsAnError) {
  for (const std::string address :
       {"127.0.0.1", "127.0.0.1:", ":29500", "127.0.0.1:2950x", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:29500000000"}) {
    const auto options = ProcessGroupOptions().init_method("tcp://" + address).rank(0).world_size(1);
    expect_error([&] { detail::open_store(options); },
                 {"the init_method 'tcp://" + address + "' does not have the form tcp://HOST:PORT"});
  }
}

// Each rank's given backend and GPU.
TEST(BackendChoice, UsesNcclIfEachRankHasItsOwnGpu) {
  using detail::choose_backend;
  EXPECT_EQ(choose_backend({{"", "a"}, {"", "b"}}), "cpu:gloo,cuda:nccl");
  EXPECT_EQ(choose_backend({{"", "a"}}), "cpu:gloo,cuda:nccl");
  EXPECT_EQ(choose_backend({{"", "a"}, {"", "b"}, {"", "a"}}), "gloo");
  EXPECT_EQ(choose_backend({{"", "a"}, {"", ""}}), "gloo");
  EXPECT_EQ(choose_backend({{"", ""}, {"", ""}}), "gloo");
}

TEST(BackendChoice, ReportsWhyNcclCannotBeUsed) {
  EXPECT_EQ(detail::why_without_nccl({{"", "a"}, {"", "b"}, {"", "a"}}), "ranks 0 and 2 have the same GPU");
  EXPECT_EQ(detail::why_without_nccl({{"", "a"}, {"", ""}}), "rank 1 has no GPU");
  EXPECT_EQ(detail::why_without_nccl({{"", "a"}, {"", "b"}}), "");
}

TEST(BackendChoice, UsesTheBackendThatSomeRanksWereGiven) {
  EXPECT_EQ(detail::choose_backend({{"", "a"}, {"gloo", ""}}), "gloo");
  EXPECT_EQ(detail::choose_backend({{"nccl", ""}, {"", "a"}}), "nccl");
  expect_error(
      [] {
        detail::choose_backend({{"", "a"}, {"nccl", ""}, {"gloo", ""}});
      },
      {"rank 2 was given the backend 'gloo', but rank 1 'nccl'"});
}

TEST(BackendChoice, CanBeSentAsText) {
  for (const detail::BackendWish& wish : {detail::BackendWish{"gloo", ""}, {"", "0f3a"}, {"", ""}}) {
    const auto read = detail::wish_of(detail::text_of(wish));
    EXPECT_EQ(read.backend, wish.backend);
    EXPECT_EQ(read.gpu, wish.gpu);
  }
}

TEST(ProcessGroup, IsCreatedOnce) {
  EXPECT_THROW(init_process_group(), c10::Error);
  EXPECT_TRUE(is_initialized());
  EXPECT_EQ(or_default({}).get(), default_process_group().get());
}

}  // namespace
}  // namespace apex::parallel
