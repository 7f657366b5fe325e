// Schedulers as programs use them: as LibTorch's, on every class of optimizer, and on amp's handles.
#include <apex_cpp/lr_scheduler.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel/larc.h>

#include "tests/amp/every_level.h"
#include "tests/lr_scheduler/optimizers.h"

namespace apex::test {
namespace {

using namespace lr_scheduler;
using Rates = std::vector<double>;

std::unique_ptr<torch::optim::SGD> two_groups(const Rates& rates = {0.5, 0.25}) {
  return with_rates<torch::optim::SGD>(rates, torch::optim::SGDOptions(1.0).momentum(0.9));
}

TEST(Scheduler, SetsTheFirstRatesWhenItIsMade) {
  const auto opt = two_groups();
  const LinearLR linear(*opt, 0.5, 1.0, 4);
  EXPECT_EQ(rates_of(*opt), Rates({0.25, 0.125}));
  EXPECT_EQ(linear.get_last_lr(), Rates({0.25, 0.125}));
  EXPECT_EQ(linear.last_epoch(), 0);
}

TEST(Scheduler, IsOneOfLibTorchs) {
  const auto opt = two_groups();
  LinearLR linear(*opt, 0.5, 1.0, 2);
  EXPECT_EQ(rates_after(linear, 1, *opt), Rates({0.375, 0.1875}));
  EXPECT_EQ(rates_after(linear, 1, *opt), Rates({0.5, 0.25}));
  EXPECT_EQ(rates_after(linear, 5, *opt), Rates({0.5, 0.25}));
}

// LibTorch's StepLR sets no rate when it is made, so it is one step behind.
TEST(Scheduler, StepsAsLibTorchsOneStepEarlier) {
  const auto ours = two_groups(), theirs = two_groups();
  StepLR mine(*ours, 3, 0.5);
  torch::optim::StepLR reference(*theirs, 3, 0.5);
  reference.step();
  for (int i = 0; i < 12; ++i) EXPECT_EQ(rates_after(mine, 1, *ours), rates_after(reference, 1, *theirs));
}

TEST(Scheduler, AChainThatCannotStepMovesNoRate) {
  const auto opt = two_groups();
  const auto halves = std::make_shared<StepLR>(*opt, 1, 0.5);
  const auto cosine = std::make_shared<CosineAnnealingLR>(*opt, /*T_max=*/1, /*eta_min=*/0.125);
  ChainedScheduler with_lambda({halves, std::make_shared<LambdaLR>(*opt, [](int64_t) { return 1.0; })});
  ChainedScheduler with_cosine({halves, cosine});
  cosine->step();  // to its lowest rate, from which it turns
  torch::optim::OptimizerParamGroup group({torch::ones({2}, torch::requires_grad())});
  group.set_options(opt->param_groups()[0].options().clone());
  opt->add_param_group(group);
  const Rates before = rates_of(*opt);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(with_lambda.step(), c10::ValueError);
    EXPECT_THROW(with_cosine.step(), c10::ValueError);
    EXPECT_EQ(rates_of(*opt), before);
    EXPECT_EQ(halves->last_epoch(), 0);
  }
}

TEST(Scheduler, KnowsTheRatesFromBeforeTheFirstOne) {
  const auto opt = two_groups();
  const ConstantLR first(*opt, 0.5, 3);
  LambdaLR second(*opt, [](int64_t) { return 1.0; });
  EXPECT_EQ(rates_of(*opt), Rates({0.5, 0.25}));  // times the initial rate, not the half of it
}

TEST(Scheduler, ForgetsTheInitialRatesWithTheLastOne) {
  const auto opt = two_groups();
  { const ConstantLR first(*opt, 0.5, 3); }
  const LambdaLR second(*opt, [](int64_t) { return 1.0; });
  EXPECT_EQ(rates_of(*opt), Rates({0.25, 0.125}));
}

// As in a loop over rates, where the scheduler of the last turn lives until the next one is made.
TEST(Scheduler, HasTheRatesOfAnOptimizerThatIsAssignedToItsPlace) {
  const torch::Tensor weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD opt({weight}, torch::optim::SGDOptions(0.5));
  const ConstantLR first(opt, 0.5, 3);
  opt = torch::optim::SGD({weight}, torch::optim::SGDOptions(0.125));
  const LambdaLR second(opt, [](int64_t) { return 1.0; });
  EXPECT_EQ(rates_of(opt), Rates({0.125}));
}

TEST(Scheduler, SequenceBeginsBehindMilestonesAtZero) {
  const auto opt = two_groups();
  SequentialLR all(*opt, {std::make_shared<LinearLR>(*opt, 0.5, 1.0, 4), std::make_shared<ExponentialLR>(*opt, 0.5)}, {0});
  EXPECT_EQ(rates_of(*opt), Rates({0.5, 0.25}));
  EXPECT_EQ(rates_after(all, 1, *opt), Rates({0.25, 0.125}));
}

// A part begins at its epoch 0, with the rates of Python's closed forms.
TEST(Scheduler, PartsOfASequenceBeginBehindTheirOwnMilestonesAtZero) {
  const auto opt = two_groups();
  const auto halves = std::make_shared<MultiStepLR>(*opt, std::vector<int64_t>{0, 0, 1}, 0.5);
  SequentialLR all(*opt, {std::make_shared<LinearLR>(*opt, 0.5, 1.0, 4), halves}, {2});
  EXPECT_EQ(rates_after(all, 2, *opt), Rates({0.125, 0.0625}));
  EXPECT_EQ(rates_after(all, 1, *opt), Rates({0.0625, 0.03125}));
}

TEST(Scheduler, AConstantFactorOfNoStepsChangesNoRateInASequence) {
  const auto opt = two_groups();
  const auto constant = std::make_shared<ConstantLR>(*opt, 0.5, 0);
  SequentialLR all(*opt, {std::make_shared<LinearLR>(*opt, 0.5, 1.0, 4), constant}, {2});
  EXPECT_EQ(rates_after(all, 2, *opt), Rates({0.5, 0.25}));
  EXPECT_EQ(rates_after(all, 1, *opt), Rates({0.5, 0.25}));
}

TEST(Scheduler, WorksOnGroupsThatAreAddedWhereRatesFollowFromRates) {
  const auto opt = two_groups({0.5});
  ExponentialLR halves(*opt, 0.5);
  LambdaLR lambda(*opt, [](int64_t) { return 1.0; });
  opt->add_param_group({{torch::ones({2}, torch::requires_grad())}, std::make_unique<torch::optim::SGDOptions>(0.25)});
  EXPECT_EQ(rates_after(halves, 1, *opt), Rates({0.25, 0.125}));
  expect_error<c10::ValueError>([&] { lambda.step(); }, {"made for 1 parameter groups", "has 2", "add_param_group"});
  EXPECT_EQ(rates_of(*opt), Rates({0.25, 0.125}));
  const auto same = two_groups({0.5, 0.75});
  ExponentialLR resumed(*same, 0.5);
  resumed.load_state_dict(halves.state_dict());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rates_after(resumed, 1, *same), rates_after(halves, 1, *opt));
}

// A step of a rate: one weight of gradient 1 moves by it.
class OnHandles : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(All, OnHandles, kEveryLevel);

template <class Opt, class Options>
void expect_steps_by_the_rates(const std::string& level, const Options& options) {
  Mlp model;
  Opt original(model->parameters(), options);
  auto [net, opt] = amp::initialize(model, original, level, quiet().loss_scale(8.0));
  SequentialLR schedule(opt, {std::make_shared<LinearLR>(opt, 0.5, 1.0, 1), std::make_shared<PolynomialLR>(opt, 2)}, {1});
  for (const double rate : {0.25, 0.5, 0.25, 0.0}) {
    EXPECT_EQ(opt.param_groups()[0].options().get_lr(), rate);
    const auto before = amp::master_params(opt).back().detach().clone();  // the last bias, whose gradient is 1
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).to(torch::kFloat).mean(0).sum(), opt).backward(); }
    opt.step();
    schedule.step();
    const auto after = amp::master_params(opt).back().detach();
    // The gradient has the rounding of a mean of four: none. A 16-bit weight of at most 1 is rounded to 2^-8.
    EXPECT_TRUE(
        torch::allclose(before - after, torch::full_like(after, rate), 0, after.scalar_type() == torch::kFloat ? 1e-6 : 4e-3));
  }
}

TEST_P(OnHandles, StepByTheScheduledRates) {
  expect_steps_by_the_rates<torch::optim::SGD>(level(), torch::optim::SGDOptions(0.5));
  expect_steps_by_the_rates<optimizers::FusedSGD>(level(), optimizers::FusedSGDOptions(0.5));
}

TEST_P(OnHandles, AlsoThroughTheOriginalOptimizer) {
  Mlp model;
  torch::optim::SGD original(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  OneCycleLR schedule(original, OneCycleLROptions(1.0).total_steps(10).div_factor(4));
  auto [net, opt] = amp::initialize(model, original, level(), quiet());
  schedule.step();
  opt.zero_grad();
  { amp::scale_loss(net->forward(features()).to(torch::kFloat).mean(), opt).backward(); }
  opt.step();
  const auto& options = static_cast<torch::optim::SGDOptions&>(opt.param_groups()[0].options());
  EXPECT_EQ(options.lr(), schedule.get_last_lr()[0]);
  EXPECT_LT(options.momentum(), 0.95);
  EXPECT_GT(options.momentum(), 0.85);
}

// The program may write other options through the original, too.
TEST_P(OnHandles, CycleTheMomentumBesideOptionsThatTheProgramWrites) {
  Mlp model;
  torch::optim::SGD original(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  OneCycleLR schedule(original, OneCycleLROptions(1.0).total_steps(10).div_factor(4));
  auto [net, opt] = amp::initialize(model, original, level(), quiet());
  const auto& in_use = static_cast<torch::optim::SGDOptions&>(opt.param_groups()[0].options());
  double before = in_use.momentum();
  for (const double decay : {0.25, 0.125}) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).to(torch::kFloat).mean(), opt).backward(); }
    opt.step();
    schedule.step();
    static_cast<torch::optim::SGDOptions&>(original.param_groups()[0].options()).weight_decay(decay);
    opt.zero_grad();
    EXPECT_EQ(in_use.weight_decay(), decay);
    EXPECT_LT(in_use.momentum(), before);
    before = in_use.momentum();
  }
}

// A write of the momentum into the original's options would carry all of these over the handle's.
TEST_P(OnHandles, KeepOtherOptionsThatTheProgramSetsOnTheHandle) {
  Mlp model;
  torch::optim::SGD original(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  OneCycleLR schedule(original, OneCycleLROptions(1.0).total_steps(10).div_factor(4));
  auto [net, opt] = amp::initialize(model, original, level(), quiet());
  auto& options = static_cast<torch::optim::SGDOptions&>(opt.param_groups()[0].options());
  schedule.step();
  options.weight_decay(0.125);
  opt.zero_grad();
  { amp::scale_loss(net->forward(features()).to(torch::kFloat).mean(), opt).backward(); }
  opt.step();
  EXPECT_EQ(options.weight_decay(), 0.125);
  EXPECT_LT(options.momentum(), 0.95);
}

// One optimizer in Python, two objects here, or three with LARC.
TEST_P(OnHandles, KnowTheRatesFromBeforeInitialize) {
  const auto unchanged = [](int64_t) { return 1.0; };
  for (const bool with_larc : {false, true}) {
    Mlp model;
    torch::optim::SGD original(model->parameters(), torch::optim::SGDOptions(0.5));
    const ConstantLR before(original, 0.5, 3);
    if (with_larc) {
      parallel::LARC larc(original);
      auto [net, opt] = amp::initialize(model, larc, level(), quiet());
      const LambdaLR on_handle(opt, unchanged);
      EXPECT_EQ(rates_of(opt), Rates({0.5}));
    } else {
      auto [net, opt] = amp::initialize(model, original, level(), quiet());
      EXPECT_EQ(rates_of(opt), Rates({0.25}));
      { const LambdaLR on_original(original, unchanged); }
      EXPECT_EQ(rates_of(opt), Rates({0.5}));
      original.param_groups()[0].options().set_lr(0.25);
      const LambdaLR on_handle(opt, unchanged);
      EXPECT_EQ(rates_of(opt), Rates({0.5}));
    }
  }
}

TEST_P(OnHandles, GoOnAfterASkippedStep) {
  Mlp model;
  torch::optim::SGD original(model->parameters(), torch::optim::SGDOptions(0.5));
  auto [net, opt] = amp::initialize(model, original, level(), quiet().loss_scale("dynamic"));
  ExponentialLR halves(opt, 0.5);
  { amp::scale_loss((net->forward(features()).to(torch::kFloat) * kInf).sum(), opt).backward(); }
  opt.step();
  halves.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(opt.param_groups()[0].options().get_lr(), 0.25);
}

// Momentum is cycled between 0.5 and 0.75: 0.75 at the first step, 0.5 at the peak.
template <class Opt, class Options, class Momentum>
void expect_cycled(const Options& defaults, const Momentum& momentum_of) {
  const auto opt = with_rates<Opt>({0.1, 0.2}, defaults);
  OneCycleLR cycle(*opt, OneCycleLROptions(1.0).total_steps(10).pct_start(0.5).base_momentum(0.5).max_momentum(0.75));
  const auto momentum = [&](size_t group) { return momentum_of(static_cast<Options&>(opt->param_groups()[group].options())); };
  EXPECT_EQ(momentum(0), 0.75);
  EXPECT_EQ(momentum(1), 0.75);
  for (int i = 0; i < 4; ++i) cycle.step();
  EXPECT_EQ(momentum(0), 0.5);
  EXPECT_EQ(momentum(1), 0.5);
  EXPECT_EQ(rates_of(*opt), Rates({1.0, 1.0}));
}

TEST(OneCycle, CyclesMomentumOrTheFirstBeta) {
  const auto momentum = [](auto& options) { return options.momentum(); };
  const auto beta1 = [](auto& options) { return std::get<0>(options.betas()); };
  expect_cycled<torch::optim::SGD>(torch::optim::SGDOptions(1.0).momentum(0.9), momentum);
  expect_cycled<torch::optim::RMSprop>(torch::optim::RMSpropOptions(), momentum);
  expect_cycled<optimizers::FusedSGD>(optimizers::FusedSGDOptions(1.0), momentum);
  expect_cycled<optimizers::FusedLARS>(optimizers::FusedLARSOptions(1.0), momentum);
  expect_cycled<optimizers::Muon>(optimizers::MuonOptions(), momentum);
  expect_cycled<torch::optim::Adam>(torch::optim::AdamOptions(), beta1);
  expect_cycled<torch::optim::AdamW>(torch::optim::AdamWOptions(), beta1);
  expect_cycled<optimizers::FusedAdam>(optimizers::FusedAdamOptions(), beta1);
  expect_cycled<optimizers::FusedLAMB>(optimizers::FusedLAMBOptions(), beta1);
  expect_cycled<optimizers::FusedLion>(optimizers::FusedLionOptions(), beta1);
  expect_cycled<optimizers::FusedNovoGrad>(optimizers::FusedNovoGradOptions(), beta1);
  expect_cycled<optimizers::FusedMixedPrecisionLamb>(optimizers::FusedMixedPrecisionLambOptions(), beta1);
}

TEST(OneCycle, KeepsTheSecondBeta) {
  const auto opt = with_rates<torch::optim::Adam>({0.1}, torch::optim::AdamOptions().betas({0.9, 0.99}));
  const OneCycleLR cycle(*opt, OneCycleLROptions(1.0).total_steps(10));
  EXPECT_EQ(std::get<1>(static_cast<torch::optim::AdamOptions&>(opt->param_groups()[0].options()).betas()), 0.99);
}

TEST(OneCycle, OfASingleEpochOrOfEpochsOfOneStepHasTheRatesOfItsTotalSteps) {
  for (const auto& [epochs, steps] : {std::pair(1, 10), std::pair(10, 1)}) {
    const auto opt = two_groups(), expected = two_groups();
    OneCycleLR cycle(*opt, OneCycleLROptions(1.0).epochs(epochs).steps_per_epoch(steps));
    OneCycleLR of_total(*expected, OneCycleLROptions(1.0).total_steps(10));
    for (int i = 0; i < 10; ++i) EXPECT_EQ(rates_after(cycle, 1, *opt), rates_after(of_total, 1, *expected)) << epochs;
  }
}

}  // namespace
}  // namespace apex::test
