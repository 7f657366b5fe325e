// State and errors: a loaded scheduler goes on with the same bits; bad arguments change nothing.
#include <apex_cpp/lr_scheduler.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>

#include <functional>
#include <limits>
#include <sstream>

#include "tests/errors.h"
#include "tests/lr_scheduler/optimizers.h"

namespace apex::test {
namespace {

using namespace lr_scheduler;
using torch::optim::Optimizer;
using Rates = std::vector<double>;

std::unique_ptr<Optimizer> sgd() {
  return with_rates<torch::optim::SGD>({0.5, 0.3}, torch::optim::SGDOptions(1.0).momentum(0.9));
}

double momentum_of(Optimizer& opt) {
  return static_cast<torch::optim::SGDOptions&>(opt.param_groups()[1].options()).momentum();
}

using Maker = std::function<std::shared_ptr<LRScheduler>(Optimizer&)>;

std::shared_ptr<LRScheduler> warmup_cosine(Optimizer& opt) {
  return std::make_shared<SequentialLR>(
      opt, Schedulers{std::make_shared<LinearLR>(opt, 0.1, 1.0, 7), std::make_shared<CosineAnnealingLR>(opt, 30, 1e-3)},
      std::vector<int64_t>{7});
}
std::shared_ptr<LRScheduler> chain(Optimizer& opt) {
  return std::make_shared<ChainedScheduler>(Schedulers{warmup_cosine(opt), std::make_shared<ExponentialLR>(opt, 0.97)});
}
std::shared_ptr<LRScheduler> one_cycle(Optimizer& opt) {
  return std::make_shared<OneCycleLR>(opt, OneCycleLROptions(0.7).total_steps(40));
}
std::shared_ptr<LRScheduler> one_cycle_of_rates(Optimizer& opt) {
  return std::make_shared<OneCycleLR>(opt, OneCycleLROptions(0.7).total_steps(40).cycle_momentum(false));
}
std::shared_ptr<LRScheduler> polynomial(Optimizer& opt) { return std::make_shared<PolynomialLR>(opt, 40, 0.9); }

class Resumed : public ::testing::TestWithParam<std::tuple<Maker, int>> {};
INSTANTIATE_TEST_SUITE_P(All, Resumed,
                         ::testing::Combine(::testing::Values(warmup_cosine, chain, one_cycle, one_cycle_of_rates, polynomial),
                                            ::testing::Values(0, 3, 7, 19)));

// The program halves the rates after the last step: that is kept, too.
TEST_P(Resumed, GoesOnWithTheSameBits) {
  const auto& [make, steps] = GetParam();
  const auto through = sgd(), resumed = sgd();
  const auto scheduler = make(*through);
  for (int i = 0; i < steps; ++i) scheduler->step();
  for (auto& group : through->param_groups()) group.options().set_lr(group.options().get_lr() * 0.5);
  std::stringstream file;
  torch::save(*scheduler, file);

  const auto loaded = make(*resumed);
  torch::load(*loaded, file);
  EXPECT_EQ(loaded->get_last_lr(), scheduler->get_last_lr());
  for (int i = steps; i < 38; ++i) {
    ASSERT_EQ(rates_of(*resumed), rates_of(*through)) << i;
    ASSERT_EQ(momentum_of(*resumed), momentum_of(*through)) << i;
    scheduler->step();
    loaded->step();
    ASSERT_EQ(loaded->last_epoch(), scheduler->last_epoch());
  }
  EXPECT_NE(rates_of(*through), rates_of(*sgd()));
}

TEST(State, GivesTheInitialRatesToLaterSchedulers) {
  const auto through = sgd();
  const auto resumed = with_rates<torch::optim::SGD>({9, 9}, torch::optim::SGDOptions(1.0));
  const ExponentialLR first(*through, 0.5);
  ExponentialLR loaded(*resumed, 0.5);
  loaded.load_state_dict(first.state_dict());
  const LambdaLR later(*resumed, [](int64_t) { return 1.0; });
  EXPECT_EQ(rates_of(*resumed), Rates({0.5, 0.3}));
}

/// `make` throws a ValueError that has `parts`, and leaves the optimizer as it was.
void expect_refused(const std::function<void(Optimizer&)>& make, const std::vector<std::string>& parts) {
  const auto opt = sgd();
  expect_error<c10::ValueError>([&] { make(*opt); }, parts);
  EXPECT_EQ(rates_of(*opt), Rates({0.5, 0.3}));
  EXPECT_EQ(momentum_of(*opt), 0.9);
}

TEST(State, ThatDoesNotFitChangesNothing) {
  const auto opt = sgd();
  auto scheduler = warmup_cosine(*opt);
  scheduler->step();
  const auto before = rates_of(*opt);
  auto state = scheduler->state_dict();
  const auto without = [&](const std::string& name) {
    LRScheduler::StateDict fewer;
    for (const auto& item : state) {
      if (item.key() != name) fewer.insert(item.key(), item.key() == "lr_0" ? 77.0 : item.value());
    }
    return fewer;
  };
  for (const char* name : {"last_epoch", "schedulers_1_lr_1", "schedulers_0_last_epoch"}) {
    expect_error([&] { scheduler->load_state_dict(without(name)); }, {"has no '" + std::string(name) + "'", "state_dict()"});
  }
  auto longer = without("");
  longer.insert("lr_2", 1.0);
  expect_error<c10::ValueError>([&] { scheduler->load_state_dict(longer); }, {"'lr_2'", "2 parameter groups"});
  auto odd = without("last_epoch");
  odd.insert("last_epoch", -2.0);
  expect_error<c10::ValueError>([&] { scheduler->load_state_dict(odd); }, {"'last_epoch' is -2", "no number of steps"});
  EXPECT_EQ(rates_of(*opt), before);
  EXPECT_EQ(scheduler->last_epoch(), 1);
}

TEST(State, OfACycleWithoutMomentumChangesNothing) {
  const auto opt = sgd(), other = sgd();
  const auto cycle = one_cycle(*opt), of_rates = one_cycle_of_rates(*other);
  of_rates->step();
  const auto before = rates_of(*opt);
  expect_error([&] { cycle->load_state_dict(of_rates->state_dict()); }, {"has no 'momentum_0'"});
  EXPECT_EQ(rates_of(*opt), before);
  EXPECT_EQ(cycle->last_epoch(), 0);
}

// LibTorch counts steps in an unsigned int, and its count is last_epoch + 1.
TEST(State, OfMoreStepsThanLibTorchCountsIsAnError) {
  const auto opt = sgd();
  ExponentialLR scheduler(*opt, 1.0);
  const auto load = [&](double last_epoch) {
    auto state = scheduler.state_dict();
    state["last_epoch"] = last_epoch;
    scheduler.load_state_dict(state);
  };
  expect_error<c10::ValueError>([&] { load(4294967295.0); }, {"no number of steps"});
  expect_error<c10::ValueError>([&] { load(0.5); }, {"'last_epoch' is 0.5, which is no number of steps"});
  EXPECT_EQ(scheduler.last_epoch(), 0);
  load(4294967294.0);
  EXPECT_EQ(scheduler.last_epoch(), 4294967294);
}

TEST(State, OfAnotherFileIsAnError) {
  std::stringstream file;
  torch::save(torch::ones({2}), file);
  const auto opt = sgd();
  ExponentialLR scheduler(*opt, 0.5);
  EXPECT_THROW(torch::load(scheduler, file), std::exception);
  torch::serialize::OutputArchive archive;
  archive.write("last_epoch", c10::IValue("three"));
  std::stringstream text;
  archive.save_to(text);
  expect_error([&] { torch::load(scheduler, text); }, {"'last_epoch'", "is not the state", "torch::save"});
}

TEST(Refused, SinglesWithBadValues) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([](auto& o) { LinearLR(o, 0.0); }, {"start_factor is 0", "above 0, up to 1"});
  expect_refused([](auto& o) { LinearLR(o, 1.5); }, {"start_factor is 1.5"});
  expect_refused([](auto& o) { LinearLR(o, 0.5, -0.1); }, {"end_factor is -0.1", "from 0 to 1"});
  expect_refused([](auto& o) { LinearLR(o, 0.5, 1.0, -3); }, {"LinearLR: total_iters is -3", "not negative"});
  expect_refused([](auto& o) { ConstantLR(o, 2.0); }, {"ConstantLR: factor is 2"});
  expect_refused([](auto& o) { ConstantLR(o, 0.5, -1); }, {"total_iters is -1"});
  expect_refused([](auto& o) { PolynomialLR(o, 0); }, {"PolynomialLR: total_iters is 0", "positive"});
  expect_refused([](auto& o) { PolynomialLR(o, 5, -1); }, {"power is -1", "not negative"});
  expect_refused([](auto& o) { PolynomialLR(o, 5, std::numeric_limits<double>::infinity()); }, {"power is inf"});
  expect_refused([](auto& o) { CosineAnnealingLR(o, -5); }, {"T_max is -5"});
  expect_refused([&](auto& o) { CosineAnnealingLR(o, 5, kNan); }, {"eta_min is nan", "finite"});
  expect_refused([](auto& o) { StepLR(o, 0); }, {"step_size is 0"});
  expect_refused([&](auto& o) { ExponentialLR(o, kNan); }, {"gamma is nan"});
  expect_refused([&](auto& o) { MultiStepLR(o, {3}, kNan); }, {"gamma is nan"});
  expect_refused([](auto& o) { LambdaLR(o, LambdaLR::Lambda()); }, {"function of group 0 is empty"});
  const std::vector<LambdaLR::Lambda> three(3, [](int64_t) { return 1.0; });
  expect_refused([&](auto& o) { LambdaLR(o, three); }, {"3 functions were given for 2", "one for each group"});
}

TEST(Refused, AFactorOf0ThatWouldBeUndone) {
  const auto opt = sgd();
  ConstantLR constant(*opt, 0.0, 2);
  constant.step();
  expect_error<c10::ValueError>([&] { constant.step(); }, {"total_iters = 2", "cannot be undone", "SequentialLR"});
  EXPECT_EQ(constant.last_epoch(), 1);
}

TEST(Refused, CombinationsThatDoNotFit) {
  expect_refused([](auto& o) { SequentialLR(o, {}, {}); }, {"SequentialLR: the list of schedulers is empty"});
  expect_refused([](auto&) { ChainedScheduler(Schedulers{}); }, {"ChainedScheduler: the list of schedulers is empty"});
  expect_refused([](auto& o) { SequentialLR(o, {nullptr}, {}); }, {"scheduler 0 is a null pointer", "make_shared"});
  expect_refused([](auto& o) { SequentialLR(o, {polynomial(o)}, {3}); },
                 {"1 schedulers have 1 milestones", "one milestone fewer"});
  expect_refused([](auto& o) { SequentialLR(o, {polynomial(o), polynomial(o)}, {-3}); }, {"milestone -3 comes after 0"});
  expect_refused([](auto& o) { SequentialLR(o, {polynomial(o), polynomial(o), polynomial(o)}, {5, 3}); }, {"3 comes after 5"});
  const auto other = sgd();
  const auto foreign = polynomial(*other);
  expect_refused([&](auto& o) { SequentialLR(o, {polynomial(o), foreign}, {2}); }, {"scheduler 1", "another optimizer"});
  expect_refused([&](auto& o) { ChainedScheduler(Schedulers{polynomial(o), foreign}); }, {"scheduler 1", "another optimizer"});
}

TEST(Refused, CombinationsWithinASequence) {
  const auto opt = sgd();
  const auto inner = warmup_cosine(*opt);
  const auto before = rates_of(*opt);
  expect_error<c10::ValueError>(
      [&] {
        SequentialLR(*opt, {polynomial(*opt), inner}, {2});
      },
      {"scheduler 1", "made of schedulers", "ChainedScheduler"});
  EXPECT_EQ(rates_of(*opt), before);
  inner->step();
  EXPECT_EQ(inner->last_epoch(), 1);
}

TEST(Refused, OneCyclesWithBadValues) {
  const auto make = [](const OneCycleLROptions& options) { return [=](auto& o) { OneCycleLR(o, options); }; };
  const auto ten = OneCycleLROptions(1.0).total_steps(10);
  const auto changed = [&](auto change) {
    auto options = ten;
    change(options);
    return make(options);
  };
  expect_refused(make(OneCycleLROptions(1.0)), {"number of steps is not known", "total_steps"});
  expect_refused(make(OneCycleLROptions(1.0).epochs(3)), {"steps_per_epoch"});
  expect_refused(make(OneCycleLROptions(1.0).total_steps(-4)), {"total_steps is -4", "positive"});
  expect_refused(make(OneCycleLROptions(1.0).epochs(0).steps_per_epoch(5)), {"epochs is 0"});
  expect_refused(make(OneCycleLROptions(1.0).epochs(2).steps_per_epoch(std::numeric_limits<int64_t>::max())), {"too large"});
  expect_refused(changed([](auto& o) { o.pct_start(1.5); }), {"pct_start is 1.5", "from 0 to 1"});
  expect_refused(changed([](auto& o) { o.pct_start(-0.5); }), {"pct_start is -0.5", "from 0 to 1"});
  expect_refused(changed([](auto& o) { o.pct_start(0.1); }), {"pct_start = 0.1", "within 0 steps"});
  expect_refused(changed([](auto& o) { o.anneal_strategy("cosine"); }), {"anneal_strategy is 'cosine'", "\"cos\""});
  expect_refused(changed([](auto& o) { o.div_factor(0); }), {"div_factor", "is 0", "other than 0"});
  expect_refused(changed([](auto& o) { o.final_div_factor(std::numeric_limits<double>::infinity()); }),
                 {"final_div_factor is inf", "finite"});
  expect_refused(changed([](auto& o) {
                   o.base_momentum({1, 2, 3});
                 }),
                 {"base_momentum has 3 values for 2", "one for each group"});
  expect_refused(make(OneCycleLROptions(std::numeric_limits<double>::infinity()).total_steps(10)),
                 {"max_lr has the value inf"});
}

TEST(Refused, CycledMomentumOfAnOptimizerWithout) {
  const auto opt = with_rates<torch::optim::Adagrad>({0.5}, torch::optim::AdagradOptions());
  const auto options = OneCycleLROptions(1.0).total_steps(10);
  expect_error<c10::ValueError>([&] { OneCycleLR(*opt, options); }, {"parameter group 0", "cycle_momentum(false)"});
  EXPECT_EQ(rates_of(*opt), Rates({0.5}));
  OneCycleLR(*opt, OneCycleLROptions(options).cycle_momentum(false));
  EXPECT_NEAR(rates_of(*opt)[0], 1.0 / 25, 1.2e-16);  // a distance of 0.96 is rounded to 2^-53
}

// As in Python, total_steps calls of step() are allowed after the first rates.
TEST(Refused, AStepPastTheEndOfACycle) {
  const auto opt = sgd();
  const auto cycle = std::make_shared<OneCycleLR>(*opt, OneCycleLROptions(1.0).total_steps(5));
  ChainedScheduler chained({std::make_shared<ExponentialLR>(*opt, 0.5), cycle});
  for (int i = 0; i < 5; ++i) chained.step();
  const auto before = rates_of(*opt);
  for (torch::optim::LRScheduler* each :
       {static_cast<torch::optim::LRScheduler*>(&chained), static_cast<torch::optim::LRScheduler*>(cycle.get())}) {
    expect_error<c10::ValueError>([&] { each->step(); }, {"step 6 is past the end", "total_steps is 5"});
  }
  EXPECT_EQ(rates_of(*opt), before);
  EXPECT_EQ(cycle->last_epoch(), 5);
}

// The phase in which the rate would fall has no steps.
TEST(Refused, AStepPastTheEndOfACycleThatOnlyRises) {
  const auto opt = sgd();
  OneCycleLR cycle(*opt, OneCycleLROptions(1.0).total_steps(5).pct_start(1.0));
  EXPECT_EQ(rates_after(cycle, 4, *opt), Rates({1.0, 1.0}));
  expect_error<c10::ValueError>([&] { cycle.step(); }, {"step 5 is past the end", "total_steps is 5"});
  EXPECT_EQ(rates_of(*opt), Rates({1.0, 1.0}));
}

}  // namespace
}  // namespace apex::test
