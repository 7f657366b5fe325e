// DistributedDataParallel at the opt levels: gradients, loss scaling and skipped steps are the same on all ranks.
#include <apex_cpp/amp.h>
#include <apex_cpp/fp16_utils/fp16_optimizer.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_blocks.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ranks.h"
#include "tests/repetitions.h"

namespace apex::parallel {
namespace {

constexpr const char* kLevels[] = {"O0", "O1", "O2", "O3", "O4", "O5", "O6"};

class DdpAmp : public apex::test::AmpTest {};

std::string bytes_of_all(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) bytes += bytes_of(tensor) + "\n";
  return bytes;
}

// The gradients that one process computes from all ranks' samples in some passes.
std::vector<Tensor> joined_sums(const std::vector<int>& passes) {
  WholeNumbers net;
  for (const int pass : passes) {
    for (int other = 0; other < world_size(); ++other) net(small_part(pass, other)).sum().backward();
  }
  std::vector<Tensor> sums;
  for (const Tensor& param : net->parameters()) sums.push_back(param.grad());
  return sums;
}

template <class Opt>
void expect_sums(const std::string& level, Opt& opt, const std::vector<Tensor>& sums) {
  const auto params = amp::master_params(opt);
  ASSERT_EQ(params.size(), sums.size());
  // bfloat16 has 8 significant bits: each of up to 12 additions rounds its partial sum by 2^-8 at most, by 2^-9 on
  // average.
  const double tolerance = level >= "O5" ? 12.0 / 512 : 0.0;
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_TRUE(torch::allclose(params[i].grad().to(torch::kFloat), sums[i], tolerance, 0)) << level << " " << i;
  }
}

amp::InitializeOptions with_scale(const std::string& level, double scale) {
  auto options = quiet();
  if (level < "O4") options.loss_scale(scale);
  return options;
}

/// Loads a file of FP32 weights which all have this value.
template <class Model>
void load_weights_of(Model& model, const Tensor& value) {
  apex::test::Mlp pretrained;
  for (auto& param : pretrained->parameters()) param.data().fill_(value);
  std::stringstream file;
  torch::save(pretrained, file);
  torch::load(model, file);
}

// Rank 0 sends its master weights, too: they hold more than the 16-bit weights.
TEST_F(DdpAmp, MastersOfWeightsThatRank0AloneLoadedAreTheSameOnAllRanks) {
  for (const char* level : {"O2", "O5", "O6"}) {
    torch::manual_seed(rank());
    apex::test::Mlp net;
    optimizers::FusedAdam adam(net->parameters(), 0.01);
    auto [model, opt] = amp::initialize(net, adam, level, quiet());
    const torch::Tensor precise = torch::full({}, 1.0f / 3);
    if (rank() == 0) load_weights_of(model, precise);
    model->fc1->weight.requires_grad_(false);
    auto ddp = DistributedDataParallel(model);
    model->fc1->weight.requires_grad_(true);
    { amp::scale_loss(ddp(torch::ones({2, 6})).sum(), opt).backward(); }
    const Tensor rounded = precise.to(model->fc1->weight.scalar_type()).to(torch::kFloat);
    const auto masters = amp::master_params(opt);
    for (size_t i = 0; i < masters.size(); ++i) {  // the first was frozen
      EXPECT_TRUE((masters[i] == (i == 0 ? rounded : precise)).all().item<bool>()) << level << " " << i << ", rank " << rank();
    }
  }
}

TEST_F(DdpAmp, RemaindersOfWeightsThatRank0AloneLoadedAreTheSameOnAllRanks) {
  apex::test::Mlp net;
  const auto options = optimizers::FusedAdamOptions(0.01).master_storage(optimizers::MasterStorage::remainder16);
  optimizers::FusedAdam adam(net->parameters(), options);
  auto [model, opt] = amp::initialize(net, adam, "O5", quiet());
  { amp::scale_loss(model->forward(torch::ones({2, 6})).sum(), opt).backward(); }
  opt.step();
  const torch::Tensor precise = torch::full({}, 1.0f / 3);
  if (rank() == 0) load_weights_of(model, precise);
  auto ddp = DistributedDataParallel(model);
  for (const Tensor& param : net->parameters())
    EXPECT_TRUE((opt.kept_master_of(param) == precise).all().item<bool>()) << "rank " << rank();
}

// As where training goes on from a checkpoint whose frozen layers were trained before.
TEST_F(DdpAmp, MastersOfFrozenWeightsThatAllRanksHaveKeepTheirBits) {
  for (const char* level : {"O2", "O5", "O6"}) {
    apex::test::Mlp net;
    optimizers::FusedAdam adam(net->parameters(), 0.01);
    auto [model, opt] = amp::initialize(net, adam, level, quiet());
    load_weights_of(model, torch::full({}, 1.0f / 3));
    model->fc1->weight.requires_grad_(false);
    auto ddp = DistributedDataParallel(model);
    EXPECT_TRUE((amp::master_params(opt)[0] == 1.0f / 3).all().item<bool>()) << level << ", rank " << rank();
  }
}

TEST_F(DdpAmp, GradientsEqualTheCombinedBatchsAtEveryLevel) {
  for (const std::string level : kLevels) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false).message_size(8));
    for (int pass = 0; pass < 3; ++pass) {
      opt.zero_grad();
      backward_in_block(ddp, opt, small_part(pass, rank()));
      expect_sums(level, opt, joined_sums({pass}));
    }
  }
}

TEST_F(DdpAmp, RetainedBuffersTrainTheSameAtEveryLevel_DDP_08) {
  for (const std::string level : kLevels) {
    std::vector<std::string> trained;
    for (const bool retains : {false, true}) {
      WholeNumbers model;
      torch::optim::SGD sgd(model->parameters(), 0.125);
      auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
      auto ddp = DistributedDataParallel(net, Options().message_size(8).retain_allreduce_buffers(retains));
      for (int pass = 0; pass < 4; ++pass) {
        opt.zero_grad(/*set_to_none=*/pass % 2 == 0);
        backward_in_block(ddp, opt, small_part(pass, rank()));
        opt.step();
      }
      trained.push_back(bytes_of(*net) + bytes_of(opt));
    }
    EXPECT_EQ(trained[1], trained[0]) << level;
  }
}

TEST_F(DdpAmp, RepeatedTrainingHasTheSameBitsAtEveryLevel) {
  const auto train = [](const std::string& level) {
    amp::reset();
    torch::manual_seed(3);
    apex::test::ConvNet model;
    optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(0.01));
    auto [net, opt] = amp::initialize(model, adam, level, quiet());
    auto ddp = DistributedDataParallel(net, Options().message_size(64));
    const Tensor x = apex::test::images() * (1 + rank());
    for (int step = 0; step < 3; ++step) {
      opt.zero_grad();
      backward_in_block(ddp, opt, x);
      opt.step();
    }
    return bytes_of(*net) + bytes_of(opt);
  };
  for (const std::string level : kLevels) {
    const std::string expected = train(level);
    for (int i = 0; i < apex::test::repetitions(); ++i) ASSERT_EQ(train(level), expected) << level << ", repetition " << i;
  }
}

TEST_F(DdpAmp, NoSyncAccumulatesTheCombinedBatchAtEveryLevel_BUG_24) {
  for (const std::string level : kLevels) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
    for (int step = 0; step < 2; ++step) {
      opt.zero_grad();
      {
        auto guard = ddp.no_sync();
        backward_in_block(ddp, opt, small_part(0, rank()));
        backward_in_block(ddp, opt, small_part(1, rank()));
      }
      backward_in_block(ddp, opt, small_part(2, rank()));
      expect_sums(level, opt, joined_sums({0, 1, 2}));
    }
    opt.step();
    expect_same_on_all_ranks(bytes_of(*net), level);
  }
}

// Gradients reduced and unscaled before an accumulation stay, and count once.
TEST_F(DdpAmp, NoSyncAfterAReducedPassAddsToIt) {
  for (const std::string level : {"O1", "O2"}) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
    backward_in_block(ddp, opt, small_part(0, rank()));
    {
      auto guard = ddp.no_sync();
      backward_in_block(ddp, opt, small_part(1, rank()));
    }
    backward_in_block(ddp, opt, small_part(2, rank()));
    expect_sums(level, opt, joined_sums({0, 1, 2}));
  }
}

TEST_F(DdpAmp, NoSyncFollowsTheLossScale_SL_09) {
  for (const std::string level : {"O1", "O2"}) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
    {
      auto guard = ddp.no_sync();
      backward_in_block(ddp, opt, small_part(0, rank()));
    }
    amp::loss_scaler(0).restore(2.0, 0);
    backward_in_block(ddp, opt, small_part(1, rank()));
    expect_sums(level, opt, joined_sums({0, 1}));
  }
}

template <class Net, class Opt>
void backward_delayed(DistributedDataParallel<Net>& ddp, Opt& opt, const Tensor& input) {
  const Tensor loss = ddp(input).sum();
  auto scaled_loss = amp::scale_loss(loss, opt, amp::ScaleLossOptions().delay_unscale(true));
  scaled_loss.backward();
  scaled_loss.finish();
}

// The next pass does not reduce earlier gradients again, even with no_sync passes in between. Without masters and with a scale
// of 1, as at O4, blocks do not change gradients, and passes add up as without amp.
TEST_F(DdpAmp, DelayedPassesCountOnce_SL_07) {
  for (const std::string level : {"O0", "O1", "O2", "O3", "O5", "O6"}) {
    for (const bool with_no_sync : {false, true}) {
      WholeNumbers model;
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
      auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
      backward_delayed(ddp, opt, small_part(0, rank()));
      if (with_no_sync) {
        auto guard = ddp.no_sync();
        backward_in_block(ddp, opt, small_part(1, rank()));
      } else {
        backward_delayed(ddp, opt, small_part(1, rank()));
      }
      backward_in_block(ddp, opt, small_part(2, rank()));
      expect_sums(level, opt, joined_sums({0, 1, 2}));
    }
  }
}

TEST_F(DdpAmp, DelayedPassesAroundNoSyncFollowTheLossScale_SL_09) {
  for (const std::string level : {"O1", "O2"}) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, with_scale(level, 4.0));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
    backward_delayed(ddp, opt, small_part(0, rank()));
    amp::loss_scaler(0).restore(2.0, 0);
    {
      auto guard = ddp.no_sync();
      backward_in_block(ddp, opt, small_part(1, rank()));
    }
    amp::loss_scaler(0).restore(1.0, 0);
    backward_in_block(ddp, opt, small_part(2, rank()));
    expect_sums(level, opt, joined_sums({0, 1, 2}));
  }
}

TEST_F(DdpAmp, MeansOfDelayedPassesAccumulate_SL_07) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O1", with_scale("O1", 4.0));
  auto ddp = DistributedDataParallel(net);
  backward_delayed(ddp, opt, small_part(0, rank()));
  backward_in_block(ddp, opt, small_part(1, rank()));
  const auto sums = joined_sums({0, 1});
  // Two means below 64, each rounded by a relative 2^-24, and their sum.
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), sums[i] / world_size(), 0, 3 * 64 * std::pow(2.0, -24))) << i;
  }
}

TEST_F(DdpAmp, AStepAfterOnlyUnsynchronizedPassesIsAnError_BUG_24) {
  for (const std::string level : kLevels) {
    WholeNumbers model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, level, quiet());
    auto ddp = DistributedDataParallel(net);
    {
      auto guard = ddp.no_sync();
      backward_in_block(ddp, opt, small_part(0, rank()));
    }
    auto& handle = opt;
    EXPECT_TRUE(contains(message_of([&] { handle.step(); }), "were within no_sync()")) << level;
    EXPECT_TRUE(contains(message_of([&] { amp::clip_grad_norm_(handle, 1.0); }), "were within no_sync()")) << level;
    opt.zero_grad();
    backward_in_block(ddp, opt, small_part(0, rank()));
    opt.step();
    expect_same_on_all_ranks(bytes_of(*net), level);
  }
}

TEST_F(DdpAmp, FP16OptimizerRejectsUnsynchronizedGradients_BUG_24) {
  for (const auto dtype : {torch::kHalf, torch::kFloat}) {  // with masters and without
    WholeNumbers net;
    net->to(dtype);
    torch::optim::SGD sgd(net->parameters(), 0.125);
    fp16_utils::FP16_Optimizer opt(sgd, fp16_utils::FP16_OptimizerOptions().static_loss_scale(4).verbose(false));
    auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
    const auto loss_of = [&, dtype = dtype](int pass) { return ddp(small_part(pass, rank()).to(dtype)).sum(); };
    const std::string before = bytes_of(*net);
    {
      auto guard = ddp.no_sync();
      EXPECT_TRUE(contains(message_of([&] { opt.backward(loss_of(0)); }), "were within no_sync()")) << dtype;
      opt.zero_grad();
      opt.backward(loss_of(0), /*update_master_grads=*/false);
    }
    EXPECT_TRUE(contains(message_of([&] { opt.update_master_grads(); }), "update_master_grads=false"));
    EXPECT_EQ(bytes_of(*net), before);
    opt.backward(loss_of(1));
    const auto sums = joined_sums({0, 1});
    const auto groups = *opt.inspect_master_grad_data();
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_TRUE(groups[0][i].equal(sums[i])) << dtype << " " << i;
    opt.step();
    expect_same_on_all_ranks(bytes_of(*net), "FP16_Optimizer");
  }
}

TEST_F(DdpAmp, AnExceptionDropsAccumulatedGradients) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O2", with_scale("O2", 4.0));
  auto ddp = DistributedDataParallel(net, Options().gradient_average(false));
  {
    auto guard = ddp.no_sync();
    backward_in_block(ddp, opt, small_part(0, rank()));
  }
  auto& handle = opt;
  EXPECT_THROW(
      {
        auto scaled_loss = amp::scale_loss(ddp(small_part(1, rank())).sum(), handle);
        throw std::runtime_error("in the block");
      },
      std::runtime_error);
  backward_in_block(ddp, opt, small_part(2, rank()));
  expect_sums("O2", opt, joined_sums({2}));
}

TEST_F(DdpAmp, ReducerGivesAllRanksTheMastersOfRank0) {
  for (const char* level : {"O2", "O5", "O6"}) {
    apex::test::Mlp net;
    optimizers::FusedAdam adam(net->parameters(), 0.01);
    auto [model, opt] = amp::initialize(net, adam, level, quiet());
    const Tensor precise = torch::full({}, 1.0f / 3);
    if (rank() == 0) load_weights_of(model, precise);
    Reducer reducer(model);
    {
      auto scaled_loss = amp::scale_loss(model->forward(torch::ones({2, 6})).sum(), opt);
      scaled_loss.backward();
      reducer.reduce();
    }
    for (const Tensor& master : amp::master_params(opt)) {
      EXPECT_TRUE((master == precise).all().item<bool>()) << level << ", rank " << rank();
    }
  }
}

TEST_F(DdpAmp, ReducerInTheBlockAveragesScaledGradients_PAR_02) {
  WholeNumbers model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O2", with_scale("O2", 4.0));
  Reducer reducer(net);
  {
    auto scaled_loss = amp::scale_loss(net(small_part(0, rank())).sum(), opt);
    scaled_loss.backward();
    reducer.reduce();
  }
  const auto masters = amp::master_params(opt);
  const auto sums = joined_sums({0});
  for (size_t i = 0; i < sums.size(); ++i) {
    const Tensor mean = (sums[i] * 4 / world_size()).to(torch::kHalf).to(torch::kFloat) / 4;  // float16 while scaled
    EXPECT_TRUE(masters[i].grad().equal(mean));
  }
}

// ---- many steps ----

// Apex's tests/distributed/amp_master_params: after 500 steps of two ranks, and 100 of more, masters and weights are equal on
// all ranks, and weights are the rounded masters.
template <class Optimizer>
void expect_equal_after_many_steps(const amp::OptLevel& level, torch::nn::Linear model, Optimizer optimizer) {
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
  auto ddp = DistributedDataParallel(net);
  const Tensor x = torch::randn({8, 48}), y = torch::randn({8, 16});
  for (int step = 0; step < (world_size() == 2 ? 500 : 100); ++step) {
    opt.zero_grad();
    auto scaled_loss = amp::scale_loss(torch::mse_loss(ddp(x), y), opt);
    scaled_loss.backward();
    scaled_loss.finish();
    opt.step();
  }
  const auto masters = amp::master_params(opt), weights = net->parameters();
  expect_same_on_all_ranks(bytes_of_all(masters), level.name() + " masters");
  expect_same_on_all_ranks(bytes_of(*net), level.name() + " weights");
  ASSERT_EQ(weights.size(), masters.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(masters[i].to(weights[i].scalar_type())));
}

TEST_F(DdpAmp, MastersAndWeightsAreEqualAfterManySteps) {
  torch::manual_seed(7 + rank());
  torch::nn::Linear a(48, 16), b(48, 16), c(48, 16);
  expect_equal_after_many_steps("O2", a, torch::optim::SGD(a->parameters(), 0.01));
  const auto in_fused_order = optimizers::FusedAdamOptions(0.01).materialize_master_grads(false);
  expect_equal_after_many_steps("O5", b, optimizers::FusedAdam(b->parameters(), in_fused_order));
  const auto in_float8 = amp::OptLevel("O6").with(amp::InitializeOptions().bfloat16_modules(std::vector<std::string>{}));
  expect_equal_after_many_steps(in_float8, c, optimizers::FusedAdam(c->parameters(), in_fused_order));
}

}  // namespace
}  // namespace apex::parallel
