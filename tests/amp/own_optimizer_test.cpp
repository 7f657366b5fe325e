// Optimizer classes of the program's own, by value and behind pointers, and messages about optimizers that amp cannot take.
#include "tests/amp/support.h"

namespace apex::test {
namespace own {

/// Options as a program writes them that never compares any.
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

}  // namespace own

namespace {

using own::Sign;
using own::SignOptions;

struct OwnSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

constexpr double kSignRate = 1.0 / 64;

class OwnClass : public AmpTest, public ::testing::WithParamInterface<const char*> {
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

TEST_P(OwnClass, BehindAUniquePointer) { expect_steps(std::make_unique<Sign>(model->parameters(), kSignRate)); }
TEST_P(OwnClass, BehindASharedPointer) { expect_steps(std::make_shared<Sign>(model->parameters(), kSignRate)); }
TEST_P(OwnClass, BehindARawPointer) {
  Sign sign(model->parameters(), kSignRate);
  expect_steps(&sign);
}

TEST_P(OwnClass, BehindABaseIsRefusedWithARemedyThatWorks) {
  std::unique_ptr<torch::optim::Optimizer> erased = std::make_unique<Sign>(model->parameters(), kSignRate);
  const auto error = message_of([&] { (void)amp::initialize(model, erased, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "Sign as a torch::optim::Optimizer"));
  EXPECT_TRUE(contains(error, "Sign&>(*optimizer)"));
  auto [net, opt] = amp::initialize(model, static_cast<Sign&>(*erased), GetParam(), quiet().loss_scale(128.0));
  { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
  opt.step();
  EXPECT_NE(model->fc2->bias[0].item<float>(), 0.0f);
}

TEST_P(OwnClass, ByAReferenceToItsBaseIsNotSliced) {
  OwnSgd own(model->parameters(), 0.1);
  torch::optim::SGD& base = own;
  std::unique_ptr<torch::optim::SGD> pointer = std::make_unique<OwnSgd>(model->parameters(), 0.1);
  EXPECT_THROW((void)amp::initialize(model, base, GetParam(), quiet()), c10::TypeError);
  EXPECT_THROW((void)amp::initialize(model, pointer, GetParam(), quiet()), c10::TypeError);
  EXPECT_EQ(own.param_groups()[0].params().size(), 4u);
}

TEST_P(OwnClass, LearningRateOfOptionsThatDoNotCompareIsFollowed) {
  Sign sign(model->parameters(), kSignRate);
  auto [net, opt] = amp::initialize(model, sign, GetParam(), quiet().loss_scale(128.0));
  static_cast<SignOptions&>(sign.param_groups()[0].options()).lr(2 * kSignRate);  // past set_lr
  { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
  opt.step();
  EXPECT_EQ(model->fc2->bias[0].item<float>(), -2 * kSignRate);
}
INSTANTIATE_TEST_SUITE_P(Levels, OwnClass, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5"));

class OptimizerMessages : public OwnClass {};

TEST_P(OptimizerMessages, AnOriginalThatWasInitializedSaysSo) {
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, GetParam(), quiet());
  Mlp other;
  EXPECT_TRUE(
      contains(message_of([&] { (void)amp::initialize(other, sgd, GetParam(), quiet()); }), "have moved to the handle"));
}

TEST_P(OptimizerMessages, AComplexParameterBelongsToAnotherOptimizer) {
  auto params = model->parameters();
  params.push_back(torch::ones({2}, torch::kComplexFloat).requires_grad_());
  torch::optim::SGD odd(params, 0.1);
  const auto error = message_of([&] { (void)amp::initialize(model, odd, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "ComplexFloat"));
  EXPECT_TRUE(contains(error, "an optimizer of its own that amp::initialize is not given"));
  EXPECT_FALSE(contains(error, "float32 first"));
  params.pop_back();
  torch::optim::SGD real(params, 0.1), complex({torch::ones({2}, torch::kComplexFloat).requires_grad_()}, 0.1);
  auto [net, opt] = amp::initialize(model, real, GetParam(), quiet());
}

TEST_P(OptimizerMessages, ADoubleParameterOfNoModelMayBeConverted) {
  auto params = model->parameters();
  params.push_back(torch::ones({2}, torch::kDouble).requires_grad_());
  torch::optim::SGD odd(params, 0.1);
  const auto error = message_of([&] { (void)amp::initialize(model, odd, GetParam(), quiet()); });
  EXPECT_TRUE(contains(error, "Convert it to float32 first, or leave it to an optimizer of its own"));
}
INSTANTIATE_TEST_SUITE_P(Levels, OptimizerMessages, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5"));

}  // namespace
}  // namespace apex::test
