// `fp8: delayed` on several ranks: all round with the scales of the whole batch.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_blocks.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

using testing::rank, testing::world_size;
using torch::Tensor;

constexpr int64_t kWidth = 16;

class DdpFloat8 : public test::AmpTest {
 protected:
  static amp::InitializeOptions delayed() {
    return test::quiet().fp8("delayed").bfloat16_modules(std::vector<std::string>{}).skip_nonfinite(true);
  }
  // Every rank has inputs of another magnitude.
  static Tensor part(int of_rank) { return torch::full({4, kWidth}, 1 + of_rank, torch::kBFloat16); }
  static double largest_input(int64_t pass) { return amp::state_dict().float8_history[pass][0][0].item<double>(); }

  torch::nn::Linear layer{kWidth, kWidth};
};

TEST_F(DdpFloat8, RanksHaveTheScalesOfTheWholeBatch) {
  optimizers::FusedAdam adam(layer->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(layer, adam, "O6", delayed());
  auto ddp = DistributedDataParallel(net);
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    { amp::scale_loss(ddp(part(rank()) * (step + 1)).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
    EXPECT_EQ(largest_input(step), world_size() * (step + 1));
  }
  expect_same_on_all_ranks(test::bytes_of(amp::state_dict().float8_history), "the histories");
  expect_same_on_all_ranks(test::bytes_of(*net), "the weights");
}

// The passes of an accumulation that are not reduced count as one with the pass that is.
TEST_F(DdpFloat8, PassesWithinNoSyncWaitForTheRanks) {
  optimizers::FusedAdam adam(layer->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(layer, adam, "O6", delayed());
  auto ddp = DistributedDataParallel(net);
  const auto pass = [&, &opt = opt](double factor) {
    amp::scale_loss(ddp(part(rank()) * factor).to(torch::kFloat).square().mean(), opt).backward();
  };
  {
    const auto alone = ddp.no_sync();
    pass(8);
  }
  EXPECT_EQ(amp::state_dict().float8_history.size(0), 0);
  pass(2);
  ASSERT_EQ(amp::state_dict().float8_history.size(0), 1);
  EXPECT_EQ(largest_input(0), 8 * world_size());
  opt.step();
}

// What a rank records after its gradients are reduced is exchanged, too.
TEST_F(DdpFloat8, AForwardPassAfterBackwardBelongsToThePass) {
  optimizers::FusedAdam adam(layer->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(layer, adam, "O6", delayed());
  auto ddp = DistributedDataParallel(net);
  {
    auto scaled = amp::scale_loss(ddp(part(rank())).to(torch::kFloat).square().mean(), opt);
    scaled.backward();
    layer->forward(part(rank()) * 10);
  }
  EXPECT_EQ(largest_input(0), 10 * world_size());
  opt.step();
}

// All ranks skip, and no history changes.
TEST_F(DdpFloat8, AnOverflowOfOneRankIsForgottenByAll) {
  optimizers::FusedAdam adam(layer->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(layer, adam, "O6", delayed());
  auto ddp = DistributedDataParallel(net);
  const auto step = [&, &opt = opt](double factor) {
    opt.zero_grad();
    { amp::scale_loss(ddp(part(rank()) * factor).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
  };
  step(1);
  const Tensor before = amp::state_dict().float8_history;
  step(rank() == 1 ? test::kInf : 1);
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_TRUE(torch::equal(amp::state_dict().float8_history, before));
  step(1);
  EXPECT_EQ(amp::state_dict().float8_history.size(0), 2);
  expect_same_on_all_ranks(test::bytes_of(amp::state_dict().float8_history), "the histories");
}

TEST_F(DdpFloat8, RanksOfAShardedOptimizerHaveTheScalesOfTheWholeBatch) {
  DistributedFusedAdam adam(layer->parameters(), DistributedFusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(layer, adam, "O6", delayed());
  for (int step = 0; step < 2; ++step) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(part(rank())).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
    EXPECT_EQ(largest_input(step), world_size());
  }
  expect_same_on_all_ranks(test::bytes_of(amp::state_dict().float8_history), "the histories");
  expect_same_on_all_ranks(test::bytes_of(*net), "the weights");
}

}  // namespace
}  // namespace apex::parallel
