// DistributedDataParallel checks that amp is initialized before wrapping, with the same settings on all ranks.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_blocks.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

class DdpAmpAgreement : public apex::test::AmpTest {};

TEST_F(DdpAmpAgreement, InitializeAfterWrappingIsAnError_CHK_07) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  {
    auto ddp = DistributedDataParallel(model);
    const std::string message = message_of([&] { (void)amp::initialize(model, sgd, "O2", quiet()); });
    EXPECT_TRUE(contains(message, "'fc1.weight' in a DistributedDataParallel. Initialize first, then wrap"));
    EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  }
  auto [net, opt] = amp::initialize(model, sgd, "O2", quiet());
  EXPECT_EQ(net->fc1->weight.scalar_type(), torch::kHalf);
}

TEST_F(DdpAmpAgreement, DifferentOptLevelsAreAnErrorOnEveryRank) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, rank() == 1 ? "O0" : "O2", quiet());
  auto& handle = net;
  const std::string message = message_of([&] { DistributedDataParallel ddp(handle); });
  EXPECT_TRUE(contains(message, "different opt levels"));
  EXPECT_TRUE(contains(message, "rank 1"));
}

// The scale is what the ranks divide one sum by.
TEST_F(DdpAmpAgreement, DifferentAmpSettingsAreAnErrorBeforeTheFirstStep) {
  const auto message_at = [](const std::string& level, const amp::InitializeOptions& options) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, options);
    return message_of([&, &net = net] { DistributedDataParallel ddp(net); });
  };
  const bool is_last = rank() == world_size() - 1;
  const std::string levels = message_at(is_last ? "O1" : "O0", quiet());
  EXPECT_TRUE(contains(levels, "opt_level O1")) << levels;
  EXPECT_TRUE(contains(levels, "the same level and options"));
  const std::string scales = message_at("O2", is_last ? quiet().loss_scale(8.0) : quiet().loss_scale("dynamic"));
  EXPECT_TRUE(contains(scales, "loss_scale 8")) << scales;
  EXPECT_TRUE(contains(message_at("O2", is_last ? quiet().max_loss_scale(16) : quiet()), "max_loss_scale 16"));
  const std::string recipes = message_at("O6", is_last ? quiet().fp8("delayed") : quiet());
  EXPECT_TRUE(contains(recipes, "fp8 delayed, gradients e5m2")) << recipes;
  EXPECT_TRUE(contains(message_at("O6", quiet().fp8_convolutions(is_last)), "with convolutions"));
}

// Ranks with different histories would round with different scales.
TEST_F(DdpAmpAgreement, AnFp8HistoryLoadedOnOneRankOnlyIsAnError) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O6", quiet().fp8("delayed"));
  auto state = amp::state_dict();
  state.float8_history = torch::ones({2, state.float8_history.size(1), 3});
  if (rank() == 1) amp::load_state_dict(state);
  auto& handle = net;
  const std::string message = message_of([&] { DistributedDataParallel ddp(handle); });
  EXPECT_TRUE(contains(message, "rank 1: fp8 history of 2 passes")) << message;
}

TEST_F(DdpAmpAgreement, ALossScaleLoadedOnOneRankOnlyIsAnErrorInTheFirstPass) {
  for (const bool delayed : {false, true}) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, "O2", quiet().loss_scale("dynamic"));
    auto ddp = DistributedDataParallel(net, Options().delay_allreduce(delayed));
    if (rank() == 0) amp::loss_scaler(0).restore(8, 3);
    const std::string before = bytes_of(*net);
    const auto backward = [&, &opt = opt] { backward_in_block(ddp, opt, small_part(0, rank())); };
    const std::string message = message_of(backward);
    EXPECT_TRUE(contains(message, "rank 0: loss 0: a scale of 8, unchanged for 3 steps")) << message;
    EXPECT_TRUE(contains(message, "amp::load_checkpoint, on every rank"));
    EXPECT_EQ(bytes_of(*net), before);
    amp::loss_scaler(0).restore(8, 3);
    opt.zero_grad();
    backward();
    opt.step();
    expect_same_on_all_ranks(bytes_of(*net), "after it");
  }
}

// Each rank's models are its own affair beside the one that is wrapped.
TEST_F(DdpAmpAgreement, AModelInitializedOnOneRankOnlyIsNotCompared) {
  WholeNumbers model, own;
  torch::optim::SGD sgd(model->parameters(), 0.1), own_sgd(own->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O2", quiet());
  if (rank() == 0) {
    auto [own_net, own_opt] = amp::initialize(own, own_sgd, "O1", quiet());
    amp::loss_scaler(0).restore(8, 3);
  }
  auto ddp = DistributedDataParallel(net);
  backward_in_block(ddp, opt, small_part(0, rank()));
  opt.step();
  expect_same_on_all_ranks(bytes_of(*net), "O2");
}

}  // namespace
}  // namespace apex::parallel
