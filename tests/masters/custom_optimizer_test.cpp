// Custom optimizer classes, by value and behind pointers, and messages about optimizers that amp does not accept.
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/optimizers/fused_lamb.h>
#include <apex_cpp/parallel/larc.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace own {

/// Options without operator==.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  explicit SignOptions(double rate) : lr_(rate) {}
  TORCH_ARG(double, lr);

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }
};

class Sign : public torch::optim::Optimizer {
 public:
  Sign(std::vector<torch::Tensor> params, double rate)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<SignOptions>(rate)) {}
  torch::Tensor step(LossClosure closure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double rate = static_cast<SignOptions&>(group.options()).lr();
      for (auto& param : group.params()) {
        if (param.grad().defined()) param.sub_(param.grad().sign(), rate);
      }
    }
    return closure ? closure() : torch::Tensor();
  }
};
SignOptions options_of(const Sign*);

/// Its step calls a function and does not read its groups.
class Around : public torch::optim::Optimizer {
 public:
  using Step = std::function<void()>;
  Around(std::vector<torch::Tensor> params, Step step)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<SignOptions>(0.1)),
        step_(std::move(step)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    step_();
    return {};
  }

 private:
  Step step_;
};
SignOptions options_of(const Around*);

/// Clamps the weights after the base's step, without raising their version counters.
template <class Base>
struct Clamped : Base {
  using Base::Base;
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    auto loss = Base::step(closure);
    for (auto& group : this->param_groups()) {
      for (auto& param : group.params()) param.data().clamp_(-kBound, kBound);
    }
    return loss;
  }
  static constexpr double kBound = 1.0 / 32;
};

}  // namespace own

namespace {

using own::Around;
using own::Clamped;
using own::Sign;
using own::SignOptions;

struct OwnSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

constexpr double kSignRate = 1.0 / 64;

class CustomOptimizer : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  /// One step by amp's handle moves a bias, whose gradient is not 0, by the rate.
  template <class Held>
  void expect_steps(Held&& held) {
    auto [net, opt] = amp::initialize(model, held, GetParam(), quiet().loss_scale(128.0));
    if constexpr (!std::is_pointer_v<std::decay_t<Held>>)
      static_assert(std::is_same_v<std::decay_t<decltype(opt)>, std::decay_t<Held>>);
    EXPECT_NE(dynamic_cast<amp::AmpOptimizer<Sign>*>(&*opt), nullptr);
    { amp::scale_loss(net->forward(features()).sum(), *opt).backward(); }
    opt->step();
    EXPECT_TRUE((model->fc2->bias == -kSignRate).all().template item<bool>());
  }
  void SetUp() override {
    AmpTest::SetUp();
    const torch::NoGradGuard no_grad;
    model->fc2->bias.zero_();
  }
  Mlp model;
};

TEST_P(CustomOptimizer, BehindAUniquePointer) { expect_steps(std::make_unique<Sign>(model->parameters(), kSignRate)); }
TEST_P(CustomOptimizer, BehindASharedPointer) { expect_steps(std::make_shared<Sign>(model->parameters(), kSignRate)); }
TEST_P(CustomOptimizer, BehindARawPointer) {
  Sign sign(model->parameters(), kSignRate);
  expect_steps(&sign);
}

TEST_P(CustomOptimizer, BehindABasePointerIsRefusedWithARemedyThatWorks) {
  std::unique_ptr<torch::optim::Optimizer> erased = std::make_unique<Sign>(model->parameters(), kSignRate);
  const auto error = message_of([&] { (void)amp::initialize(model, erased, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "Sign as a torch::optim::Optimizer"));
  EXPECT_TRUE(contains(error, "Sign&>(*optimizer)"));
  auto [net, opt] = amp::initialize(model, static_cast<Sign&>(*erased), GetParam(), quiet().loss_scale(128.0));
  { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
  opt.step();
  EXPECT_NE(model->fc2->bias[0].item<float>(), 0.0f);
}

TEST_P(CustomOptimizer, DerivedFromAFusedOptimizerBehindPointersToItsClass) {
  using Own = Clamped<optimizers::FusedAdam>;
  auto unique = std::make_unique<Own>(model->parameters());
  auto [net, opt] = amp::initialize(model, unique, GetParam(), quiet());
  static_assert(std::is_same_v<decltype(opt), std::unique_ptr<Own>>);
  EXPECT_NE(dynamic_cast<amp::AmpOptimizer<Own>*>(opt.get()), nullptr);
  Mlp other;
  auto shared = std::make_shared<Own>(other->parameters());
  auto [other_net, other_opt] = amp::initialize(other, shared, GetParam(), quiet());
  EXPECT_NE(dynamic_cast<amp::AmpOptimizer<Own>*>(other_opt.get()), nullptr);
}

TEST_P(CustomOptimizer, DerivedFromAFusedOptimizerBehindABasePointerIsRefusedWithARemedyThatWorks) {
  using Own = Clamped<optimizers::FusedAdam>;
  std::unique_ptr<optimizers::FusedAdam> base = std::make_unique<Own>(model->parameters());
  const auto error = message_of([&] { (void)amp::initialize(model, base, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "FusedAdam>&>(*optimizer)"));
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  auto [net, opt] = amp::initialize(model, static_cast<Own&>(*base), GetParam(), quiet());
  static_assert(std::is_same_v<decltype(opt), amp::AmpOptimizer<Own>>);
}

/// An optimizer that makes its own handle.
struct OwnMaker : optimizers::FusedAdam {
  using FusedAdam::FusedAdam;
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override {
    return std::make_unique<amp::AmpOptimizer<OwnMaker>>(std::move(*this), session);
  }
};

TEST_P(CustomOptimizer, WithItsOwnHandleFactoryBehindAPointerToItsClass) {
  auto own = std::make_unique<OwnMaker>(model->parameters());
  auto [net, opt] = amp::initialize(model, own, GetParam(), quiet());
  EXPECT_NE(dynamic_cast<amp::AmpOptimizer<OwnMaker>*>(opt.get()), nullptr);
}

TEST_P(CustomOptimizer, DerivedFromAWrapperBehindABasePointerIsRefused) {
  struct OwnLarc : parallel::LARC<torch::optim::SGD> {
    using parallel::LARC<torch::optim::SGD>::LARC;
  };
  torch::optim::SGD sgd(model->parameters(), 0.1);
  std::unique_ptr<torch::optim::Optimizer> base = std::make_unique<OwnLarc>(sgd);
  EXPECT_THROW((void)amp::initialize(model, base, GetParam(), quiet()), c10::TypeError);
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
}

TEST_P(CustomOptimizer, BehindABaseReferenceIsNotSliced) {
  OwnSgd own(model->parameters(), 0.1);
  torch::optim::SGD& base = own;
  std::unique_ptr<torch::optim::SGD> pointer = std::make_unique<OwnSgd>(model->parameters(), 0.1);
  EXPECT_THROW((void)amp::initialize(model, base, GetParam(), quiet()), c10::TypeError);
  EXPECT_THROW((void)amp::initialize(model, pointer, GetParam(), quiet()), c10::TypeError);
  EXPECT_EQ(own.param_groups()[0].params().size(), 4u);
}

TEST_P(CustomOptimizer, LearningRateOfOptionsWithoutComparisonTakesEffect) {
  Sign sign(model->parameters(), kSignRate);
  auto [net, opt] = amp::initialize(model, sign, GetParam(), quiet().loss_scale(128.0));
  static_cast<SignOptions&>(sign.param_groups()[0].options()).lr(2 * kSignRate);  // without set_lr
  { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
  opt.step();
  EXPECT_EQ(model->fc2->bias[0].item<float>(), -2 * kSignRate);
}
INSTANTIATE_TEST_SUITE_P(Levels, CustomOptimizer, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

/// Custom optimizer classes at levels with masters.
class CustomOptimizerWithMasters : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  /// The error of a step of `own`; checks that the weights are unchanged.
  template <class Opt>
  std::string refusal_of(Opt&& own) {
    auto [net, opt] = amp::initialize(model, own, GetParam(), quiet().loss_scale(128.0));
    { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
    const auto before = bytes_of(*model);
    const auto error = message_of([&opt = opt] { opt.step(); });
    EXPECT_EQ(bytes_of(*model), before);
    return error;
  }
  void expect_bounded_like(const std::vector<torch::Tensor>& masters) {
    const auto params = model->parameters();
    ASSERT_EQ(params.size(), masters.size());
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_LE(params[i].abs().max().item<double>(), 1.0 / 32);
      EXPECT_TRUE(params[i].equal(masters[i].to(params[i].scalar_type()))) << i;
    }
  }
  /// Steps twice; afterwards the model's weights equal the rounded masters.
  template <class Opt>
  void expect_bounded(Opt&& own) {
    auto [net, opt] = amp::initialize(model, own, GetParam(), quiet().loss_scale(128.0));
    for (int i = 0; i < 2; ++i) {
      opt.zero_grad();
      { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
      opt.step();
      expect_bounded_like(amp::master_params(opt));
    }
  }
  Mlp model;
};

TEST_P(CustomOptimizerWithMasters, SteppingAnInnerOptimizerIsAnError) {
  torch::optim::SGD sgd(model->parameters(), 0.1);  // writes through data()
  EXPECT_TRUE(contains(refusal_of(Around(model->parameters(), [&] { sgd.step(); })), "the model's weight 'fc1.weight'"));
}

TEST_P(CustomOptimizerWithMasters, SteppingItsOwnParameterListIsAnErrorAtTheFirstChange) {
  const torch::NoGradGuard no_grad;
  double rate = 0;
  const auto move = [&, params = model->parameters()] { params[3].add_(1, rate); };
  Around own(model->parameters(), move);
  auto [net, opt] = amp::initialize(model, own, GetParam(), quiet());
  opt.step();
  rate = 1;
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "'fc2.bias'"));
}

TEST_P(CustomOptimizerWithMasters, MayRestoreTheModelsWeightsAndStepItsGroups) {
  const torch::NoGradGuard no_grad;
  torch::optim::Optimizer* handle = nullptr;
  Around own(model->parameters(), [&] {
    const torch::Tensor before = model->fc2->bias.clone();
    model->fc2->bias.fill_(2);
    model->fc2->bias.copy_(before);
    for (auto& param : handle->param_groups()[0].params()) param.fill_(1);
  });
  auto [net, opt] = amp::initialize(model, own, GetParam(), quiet());
  handle = &opt;
  opt.step();
  EXPECT_TRUE((model->fc2->bias == 1).all().item<bool>());
}

TEST_P(CustomOptimizerWithMasters, DerivedFromAFusedOptimizerMayWriteAfterItsStep) {
  using optimizers::FusedAdamOptions;
  const auto params = model->parameters();
  expect_bounded(Clamped<optimizers::FusedLAMB>(params));
  expect_bounded(Clamped<optimizers::FusedAdam>(params, FusedAdamOptions(0.1)));
  expect_bounded(Clamped<optimizers::FusedAdam>(params, FusedAdamOptions(0.1).materialize_master_grads(false)));
}

TEST_P(CustomOptimizerWithMasters, MayBeWrappedInLarc) {
  Clamped<optimizers::FusedAdam> own(model->parameters());
  expect_bounded(parallel::LARC(own));
}
INSTANTIATE_TEST_SUITE_P(Levels, CustomOptimizerWithMasters, ::testing::Values("O2", "O5", "O6"));

// Only these classes are checked after a step and copied again.
using amp::detail::kIsCustomOptimizer;
static_assert(kIsCustomOptimizer<Sign> && kIsCustomOptimizer<OwnSgd> && kIsCustomOptimizer<Clamped<torch::optim::Adam>>);
static_assert(kIsCustomOptimizer<parallel::LARC<OwnSgd>> && kIsCustomOptimizer<parallel::LARC<Clamped<optimizers::FusedAdam>>>);
static_assert(!kIsCustomOptimizer<torch::optim::SGD> && !kIsCustomOptimizer<optimizers::FusedAdam>);
static_assert(!kIsCustomOptimizer<parallel::LARC<torch::optim::SGD>> &&
              !kIsCustomOptimizer<parallel::LARC<optimizers::FusedLAMB>>);

class OptimizerMessages : public CustomOptimizer {};

TEST_P(OptimizerMessages, AnAlreadyInitializedOriginalIsAnError) {
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, GetParam(), quiet());
  Mlp other;
  EXPECT_TRUE(
      contains(message_of([&] { (void)amp::initialize(other, sgd, GetParam(), quiet()); }), "have moved to the handle"));
}

TEST_P(OptimizerMessages, AComplexParameterIsAnErrorThatSuggestsAnotherOptimizer) {
  auto params = model->parameters();
  params.push_back(torch::ones({2}, torch::kComplexFloat).requires_grad_());
  torch::optim::SGD odd(params, 0.1);
  const auto error = message_of([&] { (void)amp::initialize(model, odd, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "ComplexFloat"));
  EXPECT_TRUE(contains(error, "a separate optimizer that is not passed to amp::initialize"));
  EXPECT_FALSE(contains(error, "float32 first"));
  params.pop_back();
  torch::optim::SGD real(params, 0.1), complex({torch::ones({2}, torch::kComplexFloat).requires_grad_()}, 0.1);
  auto [net, opt] = amp::initialize(model, real, GetParam(), quiet());
}

TEST_P(OptimizerMessages, ADoubleParameterOutsideTheModelIsAnErrorThatSuggestsConversion) {
  auto params = model->parameters();
  params.push_back(torch::ones({2}, torch::kDouble).requires_grad_());
  torch::optim::SGD odd(params, 0.1);
  const auto error = message_of([&] { (void)amp::initialize(model, odd, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "Convert it to float32 first, or give it to a separate optimizer"));
}
INSTANTIATE_TEST_SUITE_P(Levels, OptimizerMessages, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

}  // namespace
}  // namespace apex::test
