#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>

#include <apex_cpp/amp.h>
#include <apex_cpp/parallel/reducer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

// No layer between the linear ones rounds: gradients are multiples of 1/64, and their sums are exact in 16 bits.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, 5));
    second = register_module("second", torch::nn::Linear(6, 11));
    const at::NoGradGuard no_grad;
    for (auto& param : parameters()) param.copy_(eighths(param.sizes(), param.numel()));
  }
  at::Tensor forward(const at::Tensor& x) { return at::cat({first(x), second(x)}, 1); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Pair);

struct Batch {
  at::Tensor x, weights;
};

Batch batch_of(int of_rank, int step) {
  return {eighths({2, 6}, 50 * step + of_rank), eighths({2, 16}, 50 * step + of_rank + 20)};
}

Batch joined_batch(int step) {
  Tensors xs, weights;
  for (int each = 0; each < world_size(); ++each) {
    xs.push_back(batch_of(each, step).x);
    weights.push_back(batch_of(each, step).weights);
  }
  return {at::cat(xs), at::cat(weights)};
}

template <class Net>
at::Tensor loss_of(Net& net, const Batch& batch, double factor = 1) {
  return (net->forward(batch.x).to(at::kFloat) * batch.weights * factor).sum();
}

DistributedFusedAdamOptions summing(double lr = 0.01) {
  return DistributedFusedAdamOptions(lr).weight_decay(0.01).bucket_cap_mb(0.0001).average_grad_sync(false);
}
optimizers::FusedAdamOptions one_process_options(double lr = 0.01) {
  return optimizers::FusedAdamOptions(lr).weight_decay(0.01).materialize_master_grads(false);
}

amp::InitializeOptions quiet(double max_loss_scale = 1024) {
  amp::InitializeOptions options;
  options.verbosity(0).max_loss_scale(max_loss_scale);
  return options;
}

class AtLevel : public ::testing::TestWithParam<const char*> {};

TEST_P(AtLevel, HasTheBitsOfOneProcessIncludingSkips) {
  Pair sharded_model, fused_model;
  DistributedFusedAdam sharded(sharded_model->parameters(), summing());
  optimizers::FusedAdam fused(fused_model->parameters(), one_process_options());
  const auto options = quiet().loss_scale("dynamic");
  auto [one_net, one_opt] = amp::initialize(fused_model, fused, GetParam(), options);
  auto [net, opt] = amp::initialize(sharded_model, sharded, GetParam(), options);
  for (int step = 0; step < 6; ++step) {
    const double factor = step == 2 && rank() == world_size() - 1 ? std::numeric_limits<double>::infinity() : 1;
    const double joined = step == 2 ? std::numeric_limits<double>::infinity() : 1;
    const Tensors before = copies_of(net->parameters());
    {
      auto scaled_loss = amp::scale_loss(loss_of(net, batch_of(rank(), step), factor), opt);
      scaled_loss.backward();
    }
    {
      auto scaled_loss = amp::scale_loss(loss_of(one_net, joined_batch(step), joined), one_opt);
      scaled_loss.backward();
    }
    if (step == 4) {
      const double norm = amp::clip_grad_norm_(one_opt, 1e6);
      // Both norms are within 4 units of 2^-24 of the exact one.
      EXPECT_NEAR(amp::clip_grad_norm_(opt, 1e6), norm, 8 * std::exp2(-24) * norm);
    }
    opt.step();
    one_opt.step();
    one_opt.zero_grad();
    ASSERT_TRUE(same_bytes(net->parameters(), one_net->parameters())) << GetParam() << " step " << step;
    ASSERT_EQ(amp::step_result(opt).skipped, step == 2);
    ASSERT_EQ(amp::step_result(opt).loss_scale, amp::step_result(one_opt).loss_scale);
    if (step != 2) continue;
    EXPECT_TRUE(same_bytes(net->parameters(), before));
    EXPECT_EQ(amp::step_result(opt).loss_scale, 512);
    const auto result = amp::step_result(opt);
    EXPECT_NE(result.first_nonfinite, "");
    EXPECT_GT(result.inf_count + result.nan_count, 0);
    // An infinite loss reaches at least the last layer's weights, and at most every parameter.
    EXPECT_GE(result.nonfinite_grads, 1);
    EXPECT_LE(result.nonfinite_grads, static_cast<int64_t>(net->parameters().size()));
    EXPECT_FALSE(result.grad) << "no process has all of it";
    EXPECT_EQ(amp::step_result(opt).nonfinite_ranks, std::vector<int>{world_size() - 1});
  }
}

TEST_P(AtLevel, CountsTheNaNsOfOneProcess) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, GetParam(), quiet().loss_scale("dynamic"));
  const double factor = rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0), factor), opt).backward(); }
  opt.step();
  const auto result = amp::step_result(opt);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.inf_count, 0);
  EXPECT_GT(result.nan_count, 0);
}

TEST_P(AtLevel, AccumulatesOverBlocks) {
  Pair sharded_model, delayed, fused_model;
  DistributedFusedAdam sharded(sharded_model->parameters(), summing()), later(delayed->parameters(), summing());
  optimizers::FusedAdam fused(fused_model->parameters(), one_process_options());
  auto [one_net, one_opt] = amp::initialize(fused_model, fused, GetParam(), quiet());
  auto [net, opt] = amp::initialize(sharded_model, sharded, GetParam(), quiet());
  auto [delayed_net, delayed_opt] = amp::initialize(delayed, later, GetParam(), quiet());
  for (int step = 0; step < 6; ++step) {
    const bool last = step % 3 == 2;
    { amp::scale_loss(loss_of(net, batch_of(rank(), step)), opt).backward(); }
    {
      const auto options = amp::ScaleLossOptions().delay_unscale(!last);
      amp::scale_loss(loss_of(delayed_net, batch_of(rank(), step)), delayed_opt, options).backward();
    }
    { amp::scale_loss(loss_of(one_net, joined_batch(step)), one_opt).backward(); }
    if (!last) continue;
    for (auto* each : std::initializer_list<torch::optim::Optimizer*>{&opt, &delayed_opt, &one_opt}) each->step();
    one_opt.zero_grad();
  }
  EXPECT_TRUE(same_bytes(net->parameters(), one_net->parameters()));
  EXPECT_TRUE(same_bytes(delayed_net->parameters(), one_net->parameters()));
}

// What an earlier block of the step has found does not move the scale again (SCALE-06).
TEST_P(AtLevel, UpdatesTheScaleOncePerOverflowingBlock_SCALE_06) {
  constexpr int kBlocks = 3;
  const std::vector<std::vector<int>> overflows = {{}, {0}, {1}, {2}, {0, 1}, {0, 2}, {}};  // blocks, on one rank
  Pair sharded_model, fused_model;
  DistributedFusedAdam sharded(sharded_model->parameters(), summing());
  optimizers::FusedAdam fused(fused_model->parameters(), one_process_options());
  const auto options = quiet(65536).loss_scale("dynamic");
  auto [one_net, one_opt] = amp::initialize(fused_model, fused, GetParam(), options);
  auto& one_scaler = amp::loss_scaler(0);
  auto [net, opt] = amp::initialize(sharded_model, sharded, GetParam(), options);
  for (size_t step = 0; step < overflows.size(); ++step) {
    for (int block = 0; block < kBlocks; ++block) {
      const auto& at_fault = overflows[step];
      const bool spoiled = std::find(at_fault.begin(), at_fault.end(), block) != at_fault.end();
      const auto seed = static_cast<int>(step) * kBlocks + block;
      const double factor = spoiled ? std::numeric_limits<double>::infinity() : std::exp2(-20);
      { amp::scale_loss(loss_of(net, batch_of(rank(), seed), rank() == 0 ? factor : std::exp2(-20)), opt).backward(); }
      { amp::scale_loss(loss_of(one_net, joined_batch(seed), factor), one_opt).backward(); }
      ASSERT_EQ(amp::loss_scaler(0).loss_scale(), one_scaler.loss_scale()) << "step " << step << " block " << block;
    }
    opt.step();
    one_opt.step();
    one_opt.zero_grad();
    ASSERT_EQ(amp::step_result(opt).skipped, !overflows[step].empty()) << step;
  }
  EXPECT_EQ(one_scaler.loss_scale(), 65536 / std::exp2(7));
}

INSTANTIATE_TEST_SUITE_P(DistributedFusedAdamAmp, AtLevel, ::testing::Values("O0", "O1", "O2", "O4", "O5", "O6"));

TEST(DistributedFusedAdamAmp, HasMastersOf16BitParametersOnly) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O5", quiet());
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt).backward(); }
  opt.step();
  int64_t elements = 0;
  for (const auto& param : net->parameters()) {
    EXPECT_EQ(param.scalar_type(), at::kBFloat16);
    elements += param.numel();
  }
  at::Tensor total = at::full({1}, opt.state_bytes(), at::kLong);
  parallel::all_reduce(parallel::default_process_group(), total, "summing");
  EXPECT_EQ(total.item<int64_t>(), 12 * elements);
}

TEST(DistributedFusedAdamAmp, ClipsUnscaledGradients) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt).backward(); }
  const double norm = amp::clip_grad_norm_(opt, 0.5);
  EXPECT_GT(norm, 0.5);
  EXPECT_LT(norm, 100);  // the norm of scaled gradients would be 1024 times larger
  EXPECT_EQ(amp::step_result(opt).grad_norm, norm);
  // The 1e-6 in the coefficient's denominator takes 2e-6 of a norm of 0.5; three float32 roundings take 6e-8 of it each.
  EXPECT_NEAR(opt.grad_norm(), 0.5, 2e-6);
  opt.step();
}

TEST(DistributedFusedAdamAmp, NormsOfGradientsThatAreStillScaledAreErrors) {
  Pair model, other;
  DistributedFusedAdam sharded(model->parameters(), summing()), second(other->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
  auto [net2, opt2] = amp::initialize(other, second, "O2", quiet());
  const auto expect_errors = [&optimizer = opt] {
    for (const std::string& message :
         {message_of([&] { optimizer.grad_norm(); }), message_of([&] { optimizer.clip_grad_norm(1); })}) {
      EXPECT_NE(message.find("where the gradients are still scaled"), std::string::npos) << message;
    }
  };
  const auto delayed = amp::ScaleLossOptions().delay_unscale(true);
  // Before the optimizer's first step, and on one rank without a backward pass.
  {
    const bool has_batch = rank() != 1;
    auto scaled = amp::scale_loss(has_batch ? loss_of(net, batch_of(rank(), 9)) : torch::zeros({}), opt, delayed);
    if (has_batch) scaled.backward();
  }
  expect_errors();
  opt.zero_grad();
  {
    auto scaled = amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt);
    scaled.backward();
    expect_errors();
  }
  { amp::scale_loss(loss_of(net2, batch_of(rank(), 0)), opt2).backward(); }
  EXPECT_EQ(opt.grad_norm(), opt2.grad_norm());
  opt.step();
  opt2.step();
  { amp::scale_loss(loss_of(net, batch_of(rank(), 1)), opt, delayed).backward(); }
  expect_errors();
  opt.zero_grad();
  EXPECT_EQ(opt.grad_norm(), 0);
  for (int step : {2, 3}) {
    const auto options = amp::ScaleLossOptions().delay_unscale(step == 2);
    { amp::scale_loss(loss_of(net, batch_of(rank(), step)), opt, options).backward(); }
    { amp::scale_loss(loss_of(net2, batch_of(rank(), step)), opt2, options).backward(); }
  }
  EXPECT_EQ(opt.grad_norm(), opt2.grad_norm());
  opt.step();
  opt2.step();
  EXPECT_TRUE(same_bytes(net->parameters(), net2->parameters()));
}

TEST(DistributedFusedAdamAmp, CanBeInitializedBehindAPointer) {
  Pair model;
  std::unique_ptr<torch::optim::Optimizer> sharded = std::make_unique<DistributedFusedAdam>(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
  const Tensors before = copies_of(net->parameters());
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt).backward(); }
  opt->step();
  EXPECT_FALSE(same_bytes(net->parameters(), before));
  EXPECT_TRUE(same_on_all_ranks(net->parameters()));
}

TEST(DistributedFusedAdamAmp, AnExceptionUndoesTheBlock) {
  Pair model, other;
  DistributedFusedAdam sharded(model->parameters(), summing()), second(other->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
  auto [net2, opt2] = amp::initialize(other, second, "O2", quiet());
  try {
    auto scaled_loss = amp::scale_loss(loss_of(net, batch_of(rank(), 7)), opt);
    scaled_loss.backward();
    throw 1;
  } catch (int) {
  }
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt).backward(); }
  { amp::scale_loss(loss_of(net2, batch_of(rank(), 0)), opt2).backward(); }
  opt.step();
  opt2.step();
  EXPECT_TRUE(same_bytes(net->parameters(), net2->parameters()));
}

/// One of two layers, as the program chooses.
struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    first = register_module("first", torch::nn::Linear(6, 16));
    second = register_module("second", torch::nn::Linear(6, 16));
    const at::NoGradGuard no_grad;
    for (auto& param : parameters()) param.copy_(eighths(param.sizes(), param.numel()));
  }
  at::Tensor forward(const at::Tensor& x) { return takes_first ? first(x) : second(x); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  bool takes_first = true;
};
TORCH_MODULE(Fork);

// Buckets are sent from the last parameter on: during the backward pass those of the second layer, at its end the others.
TEST(DistributedFusedAdamAmp, ALayerThatOnlyAnAbandonedBlockUsedIsNotStepped) {
  enum class Bad { none, before_the_good_block, after_it };
  const auto trained = [](bool bad_takes_first, Bad bad) {
    Fork model;
    DistributedFusedAdam sharded(model->parameters(), summing(0.1).weight_decay(0.1));
    auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
    const auto block = [&, &net = net, &opt = opt](bool takes_first, int step) {
      net->takes_first = takes_first;
      amp::scale_loss(loss_of(net, batch_of(rank(), step)), opt).backward();
    };
    const auto abandoned_block = [&, &net = net, &opt = opt] {
      net->takes_first = bad_takes_first;
      try {
        auto scaled_loss = amp::scale_loss(loss_of(net, batch_of(rank(), 7)), opt);
        scaled_loss.backward();
        throw 1;
      } catch (int) {
      }
    };
    for (const bool takes_first : {true, false}) {  // both layers have moments, which a step with a gradient of 0 decays
      block(takes_first, 0);
      opt.step();
    }
    if (bad == Bad::before_the_good_block) abandoned_block();
    block(!bad_takes_first, 1);
    if (bad == Bad::after_it) abandoned_block();
    opt.step();
    if (bad != Bad::none) abandoned_block();
    opt.step();  // without a block that ended
    block(bad_takes_first, 2);
    opt.step();
    return copies_of(net->parameters());
  };
  for (const bool bad_takes_first : {true, false}) {
    const Tensors expected = trained(bad_takes_first, Bad::none);
    EXPECT_TRUE(same_bytes(trained(bad_takes_first, Bad::before_the_good_block), expected)) << bad_takes_first;
    EXPECT_TRUE(same_bytes(trained(bad_takes_first, Bad::after_it), expected)) << bad_takes_first;
  }
}

TEST(DistributedFusedAdamAmp, AnOverflowOfAnAbandonedBlockIsForgotten) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet().loss_scale("dynamic"));
  try {
    auto scaled_loss = amp::scale_loss(loss_of(net, batch_of(rank(), 0), rank() == 0 ? inf : 1), opt);
    scaled_loss.backward();
    throw 1;
  } catch (int) {
  }
  const double factor = rank() == world_size() - 1 ? inf : 1;
  { amp::scale_loss(loss_of(net, batch_of(rank(), 1), factor), opt).backward(); }
  opt.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(amp::step_result(opt).nonfinite_ranks, std::vector<int>{world_size() - 1});
}

TEST(DistributedFusedAdamAmp, CountsTheInfAndNaNOfTheParameterAtFault) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O0", quiet().loss_scale("dynamic"));
  const at::Tensor of_bias = rank() == 0 ? torch::tensor({nan, inf, inf, 1.0, 1.0}, at::kFloat) : at::zeros({5});
  { amp::scale_loss(loss_of(net, batch_of(rank(), 0)) + (net->first->bias * of_bias).sum(), opt).backward(); }
  opt.step();
  const auto result = amp::step_result(opt);
  EXPECT_EQ(result.first_nonfinite, "first.bias");
  EXPECT_EQ(result.nan_count, 1);
  EXPECT_EQ(result.inf_count, 2);
  EXPECT_EQ(result.nonfinite_grads, 1);
  EXPECT_EQ(result.nonfinite_ranks, std::vector<int>{0});
}

TEST_P(AtLevel, ARankWithoutABatchOpensItsBlocksWithALossOfZero) {
  Pair sharded_model, fused_model;
  DistributedFusedAdam sharded(sharded_model->parameters(), summing());
  optimizers::FusedAdam fused(fused_model->parameters(), one_process_options());
  auto [one_net, one_opt] = amp::initialize(fused_model, fused, GetParam(), quiet());
  auto [net, opt] = amp::initialize(sharded_model, sharded, GetParam(), quiet());
  for (int pass = 0; pass < 2; ++pass) {
    auto scaled_loss = amp::scale_loss(rank() == 0 ? loss_of(net, batch_of(0, pass)) : at::zeros({}), opt);
    if (rank() == 0) scaled_loss.backward();
  }
  for (int pass = 0; pass < 2; ++pass) amp::scale_loss(loss_of(one_net, batch_of(0, pass)), one_opt).backward();
  opt.step();
  one_opt.step();
  EXPECT_TRUE(same_bytes(net->parameters(), one_net->parameters())) << GetParam();
}

// The norm of 16 gradients of 2^127 is 2^129, which float32 does not hold.
TEST(DistributedFusedAdamAmp, FiniteGradientsWithoutAFiniteNormSkipTheStepAndNameNoParameter) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O0", quiet(1).loss_scale("dynamic"));
  const Tensors before = copies_of(net->parameters());
  const Batch batch{at::zeros({1, 6}), at::full({1, 16}, rank() == 0 ? 0x1p127 : 0.0)};
  { amp::scale_loss(loss_of(net, batch), opt).backward(); }
  opt.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(amp::step_result(opt).first_nonfinite, "");
  EXPECT_EQ(amp::step_result(opt).nonfinite_grads, 0);
  EXPECT_EQ(amp::step_result(opt).nonfinite_ranks, std::vector<int>{}) << "all gradients are finite on every rank";
  EXPECT_TRUE(same_bytes(net->parameters(), before));
}

TEST(DistributedFusedAdamAmp, RejectsUnsupportedUse) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet());
  EXPECT_NE(message_of([&, &o = opt] { amp::master_params(o); }).find("amp::clip_grad_norm_"), std::string::npos);
  loss_of(net, batch_of(rank(), 0)).backward();
  EXPECT_NE(message_of([&, &o = opt] { o.step(); }).find("no scale_loss block"), std::string::npos);
  const auto opens = [&, &n = net, &o = opt] { amp::scale_loss(loss_of(n, batch_of(rank(), 0)), o).backward(); };
  EXPECT_NE(message_of(opens).find("no scale_loss block"), std::string::npos);
  opt.zero_grad();
  opens();
  opt.step();

  Pair plain;
  DistributedFusedAdam without(plain->parameters(), summing().store_params(false));
  auto [net2, opt2] = amp::initialize(plain, without, "O2", quiet());
  const auto fails = [&, &n = net2, &o = opt2] { amp::scale_loss(loss_of(n, batch_of(rank(), 0)), o).backward(); };
  EXPECT_NE(message_of(fails).find("store_params"), std::string::npos);
}

// As in a GAN: the generator's block reaches the discriminator too.
TEST(DistributedFusedAdamAmp, GradientsOfAnotherOptimizersBlockAreNotReduced) {
  std::vector<Tensors> trained;
  for (const bool with_generator : {true, false}) {
    torch::nn::Linear generator(6, 6), discriminator(6, 4);
    const at::NoGradGuard values_only;
    for (auto& param : generator->parameters()) param.copy_(eighths(param.sizes(), 1));
    for (auto& param : discriminator->parameters()) param.copy_(eighths(param.sizes(), 2));
    DistributedFusedAdam adam_g(generator->parameters(), summing()), adam_d(discriminator->parameters(), summing());
    auto nets = std::tie(generator, discriminator);
    auto optimizers = std::tie(adam_g, adam_d);
    auto [handles, opts] = amp::initialize(nets, optimizers, "O2", quiet());
    auto& [g, d] = handles;
    auto& [opt_g, opt_d] = opts;
    const at::AutoGradMode with_gradients(true);
    const auto loss = [&, &g = g, &d = d] { return d->forward(g->forward(batch_of(rank(), 0).x)).to(at::kFloat).sum(); };
    { amp::scale_loss(loss(), {opt_g, opt_d}).backward(); }
    opt_g.step();
    opt_d.step();
    if (with_generator) {
      { amp::scale_loss(loss(), opt_g).backward(); }
      opt_g.zero_grad();
      const std::string message = message_of([&, &o = opt_d] { amp::scale_loss(loss(), o).backward(); });
      EXPECT_NE(message.find("was not given this optimizer"), std::string::npos) << message;
      opt_d.zero_grad();
    }
    { amp::scale_loss(loss(), {opt_g, opt_d}).backward(); }
    opt_d.step();
    trained.push_back(copies_of(d->parameters()));
  }
  EXPECT_TRUE(same_bytes(trained[0], trained[1]));
}

// Nothing reduces the gradients of the other optimizer: in step 1 they overflow on rank 0 alone, in step 2 the sharded ones do
// as well.
TEST(DistributedFusedAdamAmp, AnOverflowOfAnotherOptimizerOnOneRankSkipsOnAll) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const auto& [sharded_first, shares] : {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
    Pair model;
    torch::nn::Linear own(6, 4);
    DistributedFusedAdam sharded(model->parameters(), summing());
    optimizers::FusedAdam fused(own->parameters(), one_process_options());
    auto nets = std::tie(model, own);
    auto optimizers = std::tie(sharded, fused);
    auto [handles, opts] = amp::initialize(nets, optimizers, "O2", quiet().loss_scale("dynamic"));
    auto& [net, own_net] = handles;
    auto& [opt, own_opt] = opts;
    std::optional<parallel::OverflowSharing> sharing;
    if (shares) sharing.emplace(parallel::share_overflow());
    for (int step = 0; step < 4; ++step) {
      const bool overflows = step == 1 || step == 2;
      const Tensors before = copies_of(net->parameters());
      const Batch batch = batch_of(rank(), step);
      {
        const auto loss = loss_of(net, batch, step == 2 && rank() == world_size() - 1 ? inf : 1) +
                          own_net->forward(batch.x).to(at::kFloat).sum() * (overflows && rank() == 0 ? inf : 1);
        auto scaled_loss = sharded_first ? amp::scale_loss(loss, {opt, own_opt}) : amp::scale_loss(loss, {own_opt, opt});
        scaled_loss.backward();
      }
      opt.step();
      own_opt.step();
      own_opt.zero_grad();
      EXPECT_EQ(amp::step_result(opt).skipped, overflows) << step;
      EXPECT_EQ(amp::step_result(own_opt).skipped, overflows) << step;
      EXPECT_EQ(same_bytes(net->parameters(), before), overflows) << step;
      EXPECT_TRUE(same_on_all_ranks(net->parameters())) << step;
      if (!overflows) continue;
      EXPECT_EQ(amp::step_result(opt).nonfinite_ranks, std::vector<int>{step == 1 ? 0 : world_size() - 1});
    }
    EXPECT_EQ(amp::loss_scaler(0).loss_scale(), 256);
  }
}

// In the second block the sharded gradients are finite again.
TEST(DistributedFusedAdamAmp, AnOverflowOfAnotherOptimizerIsNotTakenForAnEarlierOneOfItsOwn) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  Pair model;
  torch::nn::Linear own(6, 4);
  DistributedFusedAdam sharded(model->parameters(), summing());
  optimizers::FusedAdam fused(own->parameters(), one_process_options());
  auto nets = std::tie(model, own);
  auto optimizers = std::tie(sharded, fused);
  auto [handles, opts] = amp::initialize(nets, optimizers, "O2", quiet().loss_scale("dynamic"));
  auto& [net, own_net] = handles;
  auto& [opt, own_opt] = opts;
  std::vector<std::string> first;
  for (const bool own_overflows : {false, true}) {
    const Batch batch = batch_of(rank(), 0);
    {
      const auto loss = loss_of(net, batch, own_overflows ? 1 : inf) +
                        own_net->forward(batch.x).to(at::kFloat).sum() * (own_overflows ? inf : 1);
      amp::scale_loss(loss, {opt, own_opt}).backward();
    }
    opt.step();
    own_opt.step();
    own_opt.zero_grad();
    EXPECT_TRUE(amp::step_result(opt).skipped);
    first.push_back(amp::step_result(opt).first_nonfinite);
  }
  EXPECT_NE(first[0], "");
  EXPECT_NE(first[1], first[0]);
  EXPECT_EQ(first[1], amp::step_result(own_opt).first_nonfinite);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(11);
    layers = register_module("layers", torch::nn::Sequential(torch::nn::Linear(16, 33), torch::nn::BatchNorm1d(33),
                                                             torch::nn::Tanh(), torch::nn::Linear(33, 5)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Net);

// As many steps as in ddp_amp_test.cpp.
TEST(DistributedFusedAdamAmp, WeightsAreEqualOnAllRanksAfterManySteps) {
  for (const char* level : {"O2", "O5"}) {
    Net model;
    DistributedFusedAdam sharded(model->parameters(), DistributedFusedAdamOptions(1e-3));
    auto [net, opt] = amp::initialize(model, sharded, level, quiet(65536));
    auto generator = at::detail::createCPUGenerator(100 + rank());
    for (int step = 0; step < (world_size() == 2 ? 500 : 100); ++step) {
      const at::Tensor x = at::randn({8, 16}, generator, at::kFloat);
      { amp::scale_loss((net->forward(x) - 1).square().mean(), opt).backward(); }
      opt.step();
    }
    EXPECT_TRUE(same_on_all_ranks(net->parameters())) << level;
    EXPECT_FALSE(amp::step_result(opt).skipped);
  }
}

TEST(DistributedFusedAdamAmp, DifferentLossScalesAreAnErrorOnEachRank) {
  Pair model;
  DistributedFusedAdam sharded(model->parameters(), summing());
  auto [net, opt] = amp::initialize(model, sharded, "O2", quiet().loss_scale("dynamic"));
  const auto backward = [&, &net = net, &opt = opt] {
    auto scaled_loss = amp::scale_loss(loss_of(net, batch_of(rank(), 0)), opt);
    scaled_loss.backward();
    scaled_loss.finish();
  };
  backward();
  opt.step();
  const Tensors before = copies_of(net->parameters());
  if (rank() == 0) amp::loss_scaler(0).restore(8, 0);
  const std::string message = message_of(backward);
  EXPECT_NE(message.find("a loss scale of 8 on one rank and of 1024 on another"), std::string::npos) << message;
  EXPECT_NE(message.find("amp::load_checkpoint, on every rank"), std::string::npos);
  EXPECT_TRUE(same_bytes(net->parameters(), before));
  amp::loss_scaler(0).restore(8, 0);
  opt.zero_grad();
  backward();
  opt.step();
  EXPECT_FALSE(same_bytes(net->parameters(), before));
  EXPECT_TRUE(same_on_all_ranks(net->parameters()));
}

}  // namespace
}  // namespace apex::testing::sharded
