// The optimizer that was passed to initialize: writes to its options reach the handle, and schedulers built on it still work.
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>

#include <functional>
#include <memory>
#include <optional>

#include "tests/amp/every_level.h"
#include "tests/amp/optimizers.h"

namespace apex::test {

/// Options without `operator==`, of which the learning rate alone is carried over.
struct PlainOptions : torch::optim::OptimizerCloneableOptions<PlainOptions> {
  explicit PlainOptions(double lr) : rate(lr) {}
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }
  double rate;
};
struct PlainDescent : torch::optim::Optimizer {
  explicit PlainDescent(Params params)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<PlainOptions>(0.5)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (const auto& group : param_groups()) {
      for (const auto& param : group.params()) {
        if (param.grad().defined()) param.sub_(param.grad(), group.options().get_lr());
      }
    }
    return {};
  }
};
PlainOptions options_of(const PlainDescent*);

namespace {

using torch::optim::SGDOptions;

class OriginalOptimizerOptions : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(Levels, OriginalOptimizerOptions, kEveryLevel);

double rate_of(torch::optim::Optimizer& optimizer, size_t group = 0) {
  return optimizer.param_groups().at(group).options().get_lr();
}
SGDOptions& sgd_options_of(torch::optim::Optimizer& optimizer) {
  return static_cast<SGDOptions&>(optimizer.param_groups()[0].options());
}

// As at the end of a warm-up: the handle's rate has changed in the meantime.
TEST_P(OriginalOptimizerOptions, WritingTheInitialLearningRateAgainTakesEffect) {
  const auto moves = std::vector<std::function<void(torch::optim::Optimizer & original, torch::optim::Optimizer & handle)>>{
      [](auto& original, auto&) { original.param_groups()[0].options().set_lr(0.125); },
      [](auto& original, auto&) { sgd_options_of(original).lr(0.125); },
      [](auto&, auto& handle) { handle.param_groups()[0].options().set_lr(0.125); },
      [](auto&, auto& handle) { sgd_options_of(handle).lr(0.125); },
  };
  for (size_t i = 0; i < moves.size(); ++i) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
    moves[i](optimizer, opt);
    train_step(net, opt, features());
    EXPECT_EQ(rate_of(opt), 0.125) << i;
    EXPECT_EQ(sgd_options_of(optimizer).lr(), 0.125) << i << ": what is read there is what steps use";
    sgd_options_of(optimizer).lr(0.5);
    train_step(net, opt, features());
    EXPECT_EQ(rate_of(opt), 0.5) << i;
  }
}

TEST_P(OriginalOptimizerOptions, WritingTheInitialRateAgainWorksForOptionsWithoutComparison) {
  Mlp model;
  PlainDescent optimizer(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.param_groups()[0].options().set_lr(0.125);
  train_step(net, opt, features());
  static_cast<PlainOptions&>(optimizer.param_groups()[0].options()).rate = 0.5;
  train_step(net, opt, features());
  EXPECT_EQ(rate_of(opt), 0.5);
}

TEST_P(OriginalOptimizerOptions, AWriteKeepsTheHandlesOtherOptions) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.5).momentum(0.25));
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  sgd_options_of(opt).momentum(0.75);
  train_step(net, opt, features());
  sgd_options_of(optimizer).weight_decay(0.125);
  train_step(net, opt, features());
  EXPECT_EQ(sgd_options_of(opt).momentum(), 0.75);
  EXPECT_EQ(sgd_options_of(opt).weight_decay(), 0.125);
}

TEST_P(OriginalOptimizerOptions, AHandleWithFewerGroupsIsNoError) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.param_groups().clear();
  opt.add_param_group(torch::optim::OptimizerParamGroup(model->fc2->parameters()));
  train_step(net, opt, features());
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
}

TEST_P(OriginalOptimizerOptions, ASchedulerGoesOnWithAHandleOfFewerGroups) {
  Mlp model;
  const std::vector<torch::optim::OptimizerParamGroup> groups = {model->fc1->parameters(), model->fc2->parameters()};
  torch::optim::SGD optimizer(groups, 0.5);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.param_groups().pop_back();
  for (int i = 0; i < 3; ++i) scheduler.step();  // LibTorch's first step leaves the rate
  EXPECT_EQ(rate_of(opt), 0.125);
  EXPECT_EQ(rate_of(optimizer, 1), 0.125) << "the group's own value";
  train_step(net, opt, features());
}

/// Another layer in a separate group with the learning rate 1.
torch::optim::OptimizerParamGroup another_group(const Mlp& model) {
  return {model->fc2->parameters(), std::make_unique<SGDOptions>(1.0)};
}

TEST_P(OriginalOptimizerOptions, RatesReachTheirGroupsWhereOthersBeforeThemAreTakenOut) {
  Mlp model;
  torch::optim::SGD optimizer(model->fc1->parameters(), 0.5);
  optimizer.add_param_group(another_group(model));
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.param_groups().erase(opt.param_groups().begin());
  optimizer.param_groups()[0].options().set_lr(0.125);  // that of the group which is gone
  EXPECT_EQ(rate_of(opt), 1.0);
  optimizer.param_groups()[1].options().set_lr(0.25);
  EXPECT_EQ(rate_of(opt), 0.25);
  train_step(net, opt, features());
  EXPECT_EQ(rate_of(opt), 0.25);
  opt.add_param_group(torch::optim::OptimizerParamGroup(model->fc1->parameters(), std::make_unique<SGDOptions>(2.0)));
  optimizer.param_groups()[0].options().set_lr(0.0625);
  EXPECT_EQ(rate_of(opt, 0), 0.25);
  EXPECT_EQ(rate_of(opt, 1), 0.0625) << "a new group takes the place of one that is gone";
  train_step(net, opt, features());
  EXPECT_EQ(optimizer.param_groups().size(), 2u);
}

TEST_P(OriginalOptimizerOptions, ASchedulerBuiltBeforeInitializeAdjustsGroupsAddedLater) {
  for (const bool through_base : {false, true}) {
    Mlp model;
    torch::optim::SGD optimizer(model->fc1->parameters(), 0.5);
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
    if (through_base) {
      static_cast<torch::optim::Optimizer&>(opt).add_param_group(another_group(model));
      train_step(net, opt, features());  // amp sees such a group when the handle is used
    } else {
      opt.add_param_group(another_group(model));
    }
    ASSERT_EQ(optimizer.param_groups().size(), 2u);
    for (int i = 0; i < 3; ++i) scheduler.step();  // LibTorch's first step leaves the rate
    EXPECT_EQ(rate_of(opt, 0), 0.125);
    EXPECT_EQ(rate_of(opt, 1), 0.25);
    EXPECT_EQ(rate_of(optimizer, 1), 0.25);
    train_step(net, opt, features());
    optimizer.step();
    EXPECT_TRUE(contains(message_of([&, &net = net, &opt = opt] { train_step(net, opt, features()); }), "was called on"));
  }
}

// Its class may rely on autograd's rule: a gradient has its parameter's dtype.
TEST_P(OriginalOptimizerOptions, AStepOfTheOriginalHasAFloat32GradientAndIsNoticedByTheHandle) {
  Mlp model;
  PlainDescent optimizer(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  train_step(net, opt, features());
  for (const auto& param : optimizer.param_groups()[0].params()) {
    EXPECT_EQ(param.scalar_type(), torch::kFloat);
    EXPECT_EQ(param.grad().scalar_type(), torch::kFloat);
  }
  optimizer.step();
  EXPECT_TRUE(contains(message_of([&, &net = net, &opt = opt] { train_step(net, opt, features()); }), "was called on"));
}

TEST_P(OriginalOptimizerOptions, ClippingTheOriginalsGradientsIsNoticedByTheHandle) {
  const auto ways = std::vector<std::function<void(torch::optim::Optimizer&)>>{
      [](auto& original) { torch::nn::utils::clip_grad_norm_(original.param_groups()[0].params(), 1.0); },
      [](auto& original) { torch::nn::utils::clip_grad_norm_(original.param_groups()[0].params(), 1000.0); },
      [](auto& original) { torch::nn::utils::clip_grad_value_(original.param_groups()[0].params(), 0.5); },
  };
  for (const auto& clip : ways) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
    train_step(net, opt, features());
    clip(optimizer);
    EXPECT_TRUE(contains(message_of([&, &net = net, &opt = opt] { train_step(net, opt, features()); }), "was called on"));
  }
}

TEST_P(OriginalOptimizerOptions, GroupsCanBeAddedAfterTheOriginalIsDestroyedOrMoved) {
  for (const bool gone : {true, false}) {
    Mlp model;
    auto optimizer = std::make_unique<torch::optim::SGD>(model->fc1->parameters(), 0.5);
    auto handles = amp::initialize(model, *optimizer, level(), quiet());
    auto& [net, opt] = handles;
    std::optional<torch::optim::SGD> moved;
    if (gone) {
      optimizer.reset();
    } else {
      moved.emplace(std::move(*optimizer));
    }
    opt.add_param_group(another_group(model));
    train_step(net, opt, features());
    EXPECT_EQ(opt.param_groups().size(), 2u);
  }
}

TEST_P(OriginalOptimizerOptions, ASchedulerOfLarcsInnerOptimizerAdjustsGroupsAddedLater) {
  Mlp model;
  torch::optim::SGD optimizer(model->fc1->parameters(), 0.5);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  parallel::LARC larc(optimizer);
  torch::optim::StepLR of_larc(larc, 1, 0.5);
  auto [net, opt] = amp::initialize(model, larc, level(), quiet());
  opt.add_param_group(another_group(model));
  for (int i = 0; i < 2; ++i) scheduler.step();
  EXPECT_EQ(rate_of(opt, 1), 0.5);
  for (int i = 0; i < 2; ++i) of_larc.step();
  EXPECT_EQ(rate_of(opt, 1), 0.25);
  train_step(net, opt, features());
}

}  // namespace
}  // namespace apex::test
