// DistributedDataParallel with an overflow on one rank: all ranks skip and name that rank.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <utility>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_blocks.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

class DdpOverflow : public apex::test::AmpTest {};

enum class Opt { sgd, fused_adam, fused_adam_in_fused_order };

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Opt kind, const std::vector<Tensor>& params) {
  if (kind == Opt::sgd) return std::make_unique<torch::optim::SGD>(params, 0.01);
  return std::make_unique<optimizers::FusedAdam>(
      params, optimizers::FusedAdamOptions(0.01).materialize_master_grads(kind == Opt::fused_adam));
}

Tensor with_inf(Tensor input, bool spoiled) {
  if (spoiled) input[0][0] = apex::test::kInf;
  return input;
}

struct OverflowCase {
  const char* level;
  Opt optimizer;
  bool in_no_sync;
};

class DdpOverflowCases : public DdpOverflow, public ::testing::WithParamInterface<OverflowCase> {};

TEST_P(DdpOverflowCases, OnOneRankSkipsOnAll) {
  const auto [level, kind, in_no_sync] = GetParam();
  const int at_fault = world_size() - 1;
  WholeNumbers model;
  auto optimizer = make_optimizer(kind, model->parameters());
  auto [net, opt_pointer] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic"));
  auto& opt = *opt_pointer;
  amp::loss_scaler(0).restore(64.0, 0);
  auto ddp = DistributedDataParallel(net, Options().message_size(1));
  for (int step = 0; step < 4; ++step) {
    const bool overflows = step == 1;
    opt.zero_grad();
    const std::string before = bytes_of(opt) + bytes_of(*net);
    const Tensor spoiled = with_inf(small_part(step, rank()), overflows && rank() == at_fault);
    if (in_no_sync) {
      auto guard = ddp.no_sync();
      backward_in_block(ddp, opt, spoiled);
    }
    backward_in_block(ddp, opt, in_no_sync ? small_part(step + 1, rank()) : spoiled);
    opt.step();
    const auto result = amp::step_result(opt);
    EXPECT_EQ(result.skipped, overflows) << step;
    EXPECT_EQ(bytes_of(opt) + bytes_of(*net) == before, overflows) << step;
    EXPECT_EQ(result.nonfinite_ranks, overflows ? std::vector<int>{at_fault} : std::vector<int>{}) << step;
    EXPECT_EQ(result.first_nonfinite.empty(), !overflows);
    EXPECT_EQ(result.loss_scale, step == 0 ? 64.0 : 32.0);
    expect_same_on_all_ranks(bytes_of(*net) + bytes_of(opt), "step " + std::to_string(step));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, DdpOverflowCases,
                         ::testing::Values(OverflowCase{"O1", Opt::sgd, false}, OverflowCase{"O1", Opt::sgd, true},
                                           OverflowCase{"O1", Opt::fused_adam, false}, OverflowCase{"O2", Opt::sgd, false},
                                           OverflowCase{"O2", Opt::sgd, true}, OverflowCase{"O2", Opt::fused_adam, false},
                                           OverflowCase{"O2", Opt::fused_adam, true},
                                           OverflowCase{"O2", Opt::fused_adam_in_fused_order, false},
                                           OverflowCase{"O2", Opt::fused_adam_in_fused_order, true}));

TEST_F(DdpOverflow, OverflowIsPrintedWithItsRank) {  // PRINT-03: on every rank
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  ::testing::internal::CaptureStdout();
  auto [net, opt] = amp::initialize(model, sgd, "O2");
  amp::loss_scaler(0).restore(64.0, 0);
  auto ddp = DistributedDataParallel(net);
  backward_in_block(ddp, opt, with_inf(small_part(0, rank()), rank() == 1));
  opt.step();
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStdout(), "(from rank 1)"));
}

// 0.6 * 65536 on every rank: the sum is too much for float16, and no rank is to blame.
TEST_F(DdpOverflow, AnOverflowOnlyInTheSumIsReportedAsSuch) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  ::testing::internal::CaptureStdout();
  auto [net, opt] = amp::initialize(model, sgd, "O2");
  auto ddp = DistributedDataParallel(net);
  {
    auto scaled_loss = amp::scale_loss(ddp(torch::ones({1, 1})).sum() * 0.6, opt);
    scaled_loss.backward();
  }
  opt.step();
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStdout(), "(finite on every rank, and only their sum is not)"));
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_TRUE(amp::step_result(opt).nonfinite_ranks.empty());
}

TEST_F(DdpOverflow, GradScalerSkipsOnAllRanks) {
  for (const bool fused : {false, true}) {
    WholeNumbers net;
    auto opt = make_optimizer(fused ? Opt::fused_adam : Opt::sgd, net->parameters());
    amp::GradScaler scaler("cpu", 64.0);
    auto ddp = DistributedDataParallel(net);
    for (int step = 0; step < 3; ++step) {
      opt->zero_grad();
      const std::string before = bytes_of(*net);
      {
        auto guard = ddp.no_sync();
        scaler.scale(ddp(with_inf(small_part(step, rank()), step == 1 && rank() == 0)).sum()).backward();
      }
      scaler.scale(ddp(small_part(step, rank())).sum()).backward();
      scaler.step(*opt);
      scaler.update();
      EXPECT_EQ(bytes_of(*net) == before, step == 1);
      EXPECT_EQ(scaler.get_scale(), step == 0 ? 64.0 : 32.0);
      expect_same_on_all_ranks(bytes_of(*net), "step " + std::to_string(step));
    }
  }
}

TEST_F(DdpOverflow, GradScalerRejectsUnsynchronizedGradients_BUG_24) {
  for (const bool fused : {false, true}) {
    WholeNumbers net;
    auto opt = make_optimizer(fused ? Opt::fused_adam : Opt::sgd, net->parameters());
    amp::GradScaler scaler("cpu", 64.0);
    auto ddp = DistributedDataParallel(net);
    const std::string before = bytes_of(*net);
    {
      auto guard = ddp.no_sync();
      scaler.scale(ddp(small_part(0, rank())).sum()).backward();
    }
    const std::string scaled = bytes_of(net->fc1->weight.grad());
    const std::string message = message_of([&] { scaler.step(*opt); });
    EXPECT_TRUE(contains(message, "the gradient of parameter 0 of group 0, of shape [3, 4], is not summed over the ranks"))
        << message;
    EXPECT_TRUE(contains(message_of([&] { scaler.unscale_(*opt); }), "were within no_sync()"));
    EXPECT_EQ(bytes_of(*net), before);
    EXPECT_EQ(bytes_of(net->fc1->weight.grad()), scaled);
    scaler.scale(ddp(small_part(1, rank())).sum()).backward();
    scaler.step(*opt);
    scaler.update();
    EXPECT_NE(bytes_of(*net), before);
    expect_same_on_all_ranks(bytes_of(*net), "after a reduced pass");
  }
}

// Each rank has its own model, and nothing reduces gradients.
TEST_F(DdpOverflow, OverflowsAreSharedWithoutReducedGradients_BUG_25) {
  for (const bool shares : {true, false}) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.01);
    auto [net, opt] = amp::initialize(model, sgd, "O2", quiet());
    std::optional<OverflowSharing> sharing;
    if (shares) sharing.emplace(share_overflow());
    for (int step = 0; step < 3; ++step) {
      opt.zero_grad();
      {
        auto scaled_loss = amp::scale_loss(net(with_inf(small_part(step, rank()), step == 1 && rank() == 0)).sum() * 0.01, opt);
        scaled_loss.backward();
      }
      opt.step();
      EXPECT_EQ(amp::step_result(opt).skipped, step == 1 && (shares || rank() == 0));
      EXPECT_EQ(amp::step_result(opt).nonfinite_ranks, step == 1 && shares ? std::vector<int>{0} : std::vector<int>{});
    }
    EXPECT_EQ(amp::loss_scaler(0).loss_scale(), shares || rank() == 0 ? 32768.0 : 65536.0);
  }
}

/// A step of a model that this rank has alone, with an overflow on rank 0. Returns whether this rank skips it.
bool skips_an_overflow_on_rank_0() {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, sgd, "O2", quiet());
  {
    auto scaled_loss = amp::scale_loss(net(with_inf(small_part(0, rank()), rank() == 0)).sum() * 0.01, opt);
    scaled_loss.backward();
  }
  opt.step();
  return amp::step_result(opt).skipped;
}

void expect_no_sharing() {
  EXPECT_EQ(skips_an_overflow_on_rank_0(), rank() == 0);
  if (rank() == 0) {
    EXPECT_TRUE(skips_an_overflow_on_rank_0());  // would wait for the other ranks
  }
}

// `emplace` makes the new guard before it destroys the old one.
TEST_F(DdpOverflow, SharingGoesOnWhereItsGuardIsReplaced) {
  std::optional<OverflowSharing> sharing;
  for (int fold = 0; fold < 3; ++fold) {
    sharing.emplace(share_overflow());
    EXPECT_TRUE(skips_an_overflow_on_rank_0()) << fold;
  }
  sharing.reset();
  expect_no_sharing();
}

TEST_F(DdpOverflow, SharingMayEndInAnyOrder) {
  ProcessGroup alone;
  for (int each = 0; each < world_size(); ++each) {
    const ProcessGroup group = new_group({each});
    if (each == rank()) alone = group;
  }
  for (const bool oldest_first : {true, false}) {
    auto first = std::make_unique<OverflowSharing>(share_overflow()),
         second = std::make_unique<OverflowSharing>(share_overflow(alone));
    EXPECT_EQ(skips_an_overflow_on_rank_0(), rank() == 0);  // the newest is in force
    (oldest_first ? first : second).reset();
    EXPECT_EQ(skips_an_overflow_on_rank_0(), !oldest_first || rank() == 0);
    (oldest_first ? second : first).reset();
    expect_no_sharing();
  }
}

TEST_F(DdpOverflow, SharingEndsWithTheGuardThatItWasMovedInto) {
  std::optional<OverflowSharing> sharing;
  {
    OverflowSharing moved_from = share_overflow();
    sharing.emplace(std::move(moved_from));
  }
  EXPECT_TRUE(skips_an_overflow_on_rank_0());
  sharing.reset();
  expect_no_sharing();
}

}  // namespace
}  // namespace apex::parallel
