// The optimizer handle: schedulers, moves, groups added later, and use of the original optimizer.
#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

template <class Kind>
class Handle : public AmpTest {
 protected:
  using Options = typename amp::detail::OptionsOf<typename Kind::Optimizer>::type;
  static double lr_of(torch::optim::Optimizer& optimizer, size_t group = 0) {
    return static_cast<Options&>(optimizer.param_groups()[group].options()).lr();
  }
};
TYPED_TEST_SUITE(Handle, AllOptimizers);

TYPED_TEST(Handle, ASchedulerBuiltBeforeInitializeChangesTheRate) {
  Mlp model;
  auto optimizer = TypeParam::make(model->parameters());
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const double before = this->lr_of(opt);
  train_step(net, opt, features());
  for (int i = 0; i < 3; ++i) scheduler.step();  // LibTorch's first step leaves the rate
  EXPECT_EQ(this->lr_of(opt), before * 0.25);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), before * 0.25);
}

TYPED_TEST(Handle, ASchedulerBuiltOnTheHandleChangesTheRate) {
  Mlp model;
  auto optimizer = TypeParam::make(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  torch::optim::StepLR scheduler(opt, 1, 0.5);
  const double before = this->lr_of(opt);
  train_step(net, opt, features());
  for (int i = 0; i < 2; ++i) scheduler.step();
  EXPECT_EQ(this->lr_of(opt), before * 0.5);
}

TYPED_TEST(Handle, TheRateThatASchedulerSetsIsTheRateOfTheStep) {
  Mlp model;
  auto optimizer = TypeParam::make(model->parameters());
  torch::optim::StepLR scheduler(optimizer, 1, 0.0);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  for (int i = 0; i < 2; ++i) scheduler.step();
  const auto before = bytes_of(*model);
  train_step(net, opt, features());
  EXPECT_EQ(bytes_of(*model), before) << "lr 0 trains nothing";
}

TYPED_TEST(Handle, OptionsWrittenIntoTheOriginalReachTheNextStep) {
  Mlp model;
  auto optimizer = TypeParam::make(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  static_cast<typename TestFixture::Options&>(optimizer.param_groups()[0].options()).lr(0.75).weight_decay(0.125);
  train_step(net, opt, features());
  EXPECT_EQ(this->lr_of(opt), 0.75);
  EXPECT_EQ(static_cast<typename TestFixture::Options&>(opt.param_groups()[0].options()).weight_decay(), 0.125);
}

TYPED_TEST(Handle, StepOnTheOriginalIsAnError) {
  for (const char* level : {"O0", "O2", "O3"}) {
    Mlp model;
    auto optimizer = TypeParam::make(model->parameters());
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    try {
      optimizer.step();
    } catch (const c10::Error&) {
      continue;  // Adagrad misses its state at once
    }
    const Tensor loss = net->forward(features()).sum();
    EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt); }), "handle")) << level;
  }
}

TYPED_TEST(Handle, ZeroGradOnTheOriginalIsAnErrorAtTheNextStep) {
  for (bool set_to_none : {true, false}) {
    Mlp model;
    auto optimizer = TypeParam::make(model->parameters());
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
    optimizer.zero_grad(set_to_none);
    EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "zero_grad"));
  }
}

TYPED_TEST(Handle, SavingTheOriginalOrAddingGroupsToItIsAnError) {
  for (const bool enabled : {true, false}) {
    Mlp model;
    auto optimizer = TypeParam::make(model->parameters());
    const double rate = this->lr_of(optimizer);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().enabled(enabled));
    std::stringstream stream;
    EXPECT_TRUE(contains(message_of([&] { torch::save(optimizer, stream); }), "torch::save was given the optimizer that"));
    const torch::optim::OptimizerParamGroup group({torch::ones({2}, torch::requires_grad())});
    EXPECT_TRUE(contains(message_of([&] { optimizer.add_param_group(group); }), "add_param_group() was called on"));
    EXPECT_EQ(optimizer.defaults().get_lr(), rate);
  }
}

template <class Kind>
auto handle_over(Mlp& model) {
  auto optimizer = Kind::make(model->parameters());
  return amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0)).second;
}

TYPED_TEST(Handle, MovingAHandleKeepsItsState) {
  Mlp model;
  auto first = handle_over<TypeParam>(model);  // moved out of the pair, and returned
  auto net = model;
  const auto pass = [&](auto& opt) { amp::scale_loss(net->forward(features().to(torch::kHalf)).sum(), opt).backward(); };
  first.zero_grad();
  pass(first);
  auto second = std::move(first);
  const auto before = bytes_of(*model);
  second.step();
  EXPECT_NE(bytes_of(*model), before);
  std::vector<decltype(second)> list;
  list.push_back(std::move(second));
  list.reserve(16);
  const auto before_list = bytes_of(*model);
  list[0].zero_grad();
  pass(list[0]);
  list[0].step();
  EXPECT_NE(bytes_of(*model), before_list);
  Mlp other;
  auto assigned = handle_over<TypeParam>(other);
  assigned = std::move(list[0]);
  EXPECT_EQ(amp::master_params(assigned).size(), 4u);
}

// ---- add_param_group ----

struct GroupCase {
  const char* level;
  bool after_a_step;
  bool through_base;
};
class AddParamGroup : public AmpTest, public ::testing::WithParamInterface<GroupCase> {};

TEST_P(AddParamGroup, Apg01To04TheNewGroupTrains) {
  const auto param = GetParam();
  Mlp first, second;
  torch::optim::SGD optimizer(first->parameters(), 0.1);
  auto [nets, opt] = amp::initialize(std::tie(first, second), optimizer, param.level, quiet().loss_scale(8.0));
  auto& [net1, net2] = nets;
  const auto pass = [&, &net1 = net1, &net2 = net2, &opt = opt] {
    auto out = net1->forward(features()).sum() + net2->forward(features()).sum();
    amp::scale_loss(out, opt).backward();
  };
  if (param.after_a_step) {
    opt.zero_grad();
    pass();
    opt.step();
  }
  torch::optim::OptimizerParamGroup group(second->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5));
  torch::optim::Optimizer& base = opt;
  if (param.through_base) {
    base.add_param_group(group);
  } else {
    opt.add_param_group(group);
  }
  opt.zero_grad();
  second->zero_grad();
  pass();
  const Tensor bias_before = second->fc2->bias.detach().clone().to(torch::kFloat);
  opt.step();
  // d(sum)/d(bias) is the batch size: 4 rows.
  EXPECT_TRUE(torch::equal(second->fc2->bias, (bias_before - 0.5 * 4).to(second->fc2->bias.scalar_type())));
  const bool masters = std::string(param.level) == "O2" || std::string(param.level) >= "O5";
  EXPECT_EQ(amp::master_params(opt)[4].is_same(second->fc1->weight), !masters);
}
std::vector<GroupCase> group_cases() {
  std::vector<GroupCase> cases;
  for (const char* level : {"O0", "O2", "O3", "O5", "O6"}) {
    for (bool after : {false, true}) {
      for (bool base : {false, true}) cases.push_back({level, after, base});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Levels, AddParamGroup, ::testing::ValuesIn(group_cases()));

class HandleRules : public AmpTest {};

/// Sets Double as the default dtype for its lifetime, as numerical programs do.
class DoubleByDefault {
 public:
  DoubleByDefault() { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~DoubleByDefault() { c10::set_default_dtype(before_); }

 private:
  caffe2::TypeMeta before_ = c10::get_default_dtype();
};

TEST_F(HandleRules, ADefaultDtypeOfDoubleChangesNothing) {
  for (const char* level : {"O0", "O2", "O5", "O6"}) {
    const Tensor input = features();
    const auto trained = [&](Mlp model, bool misused) {
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
      train_step(net, opt, input);
      if (misused) optimizer.step();
      const auto error = message_of([&, &net = net, &opt = opt] { train_step(net, opt, input); });
      EXPECT_EQ(error.empty(), !misused) << level << ": " << error;
      return bytes_of(*model);
    };
    const auto fresh = [] {
      torch::manual_seed(7);
      return Mlp();
    };
    const auto expected = trained(fresh(), /*misused=*/false);
    Mlp same = fresh(), misused = fresh();
    const DoubleByDefault double_by_default;
    EXPECT_EQ(trained(same, /*misused=*/false), expected) << level;
    trained(misused, /*misused=*/true);
  }
}

TEST_F(HandleRules, AddParamGroupRejectsADuplicateParameterAndChangesNothing) {
  for (const bool trained : {true, false}) {
    Mlp model;
    model->fc1->weight.set_requires_grad(trained);
    auto opt = handle_over<Adam>(model);
    const auto error = message_of([&] { opt.add_param_group(torch::optim::OptimizerParamGroup({model->fc1->weight})); });
    EXPECT_TRUE(contains(error, "'fc1.weight' is in the optimizer already")) << trained;
    EXPECT_EQ(opt.param_groups().size(), 1u);
    amp::reset();
  }
}

TEST_F(HandleRules, AddParamGroupRejectsADoubleParameterAndChangesNothing) {
  Mlp model;
  auto opt = handle_over<Adam>(model);
  const Tensor odd = torch::ones({2}, torch::kDouble).requires_grad_();
  EXPECT_THROW(opt.add_param_group(torch::optim::OptimizerParamGroup({odd})), c10::TypeError);
  EXPECT_EQ(opt.param_groups().size(), 1u);
}

// Nobody takes the block's loss scale out of its gradient.
TEST_F(HandleRules, AParameterThatIsAddedAfterTheBlockMustNotBringItsScaledGradient) {
  for (const char* level : {"O0", "O1", "O3", "O4"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->fc1->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(128.0));
    const auto block = [&net = net, &opt = opt] { amp::scale_loss(net->forward(features()).sum(), opt).backward(); };
    block();
    opt.add_param_group(torch::optim::OptimizerParamGroup(model->fc2->parameters()));
    const auto before = bytes_of(*model);
    EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "'fc2.weight', which was added after")) << level;
    EXPECT_EQ(bytes_of(*model), before) << level;
    model->fc2->zero_grad();
    EXPECT_EQ(message_of([&opt = opt] { opt.step(); }), "") << level;
    EXPECT_NE(bytes_of(*model), before) << level;
    block();
    EXPECT_EQ(message_of([&opt = opt] { opt.step(); }), "") << level;
  }
}

// A float32 parameter has no master at O2 either.
TEST_F(HandleRules, WithMastersAFloat32ParameterMustNotBringItsScaledGradientEither) {
  ConvNet model;
  torch::optim::SGD optimizer(model->fc->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(128.0));
  { amp::scale_loss(net->forward(images()).square().sum(), opt).backward(); }
  opt.add_param_group(torch::optim::OptimizerParamGroup(model->bn->parameters()));
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "'bn.weight', which was added after"));
  model->bn->zero_grad();
  EXPECT_EQ(message_of([&opt = opt] { opt.step(); }), "");
}

TEST_F(HandleRules, AClosureWorksOnlyWithoutMasters) {
  for (const char* level : {"O0", "O2"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    const auto closure = [&, net = net]() mutable { return net->forward(features()).sum(); };
    const auto error = message_of([&, &opt = opt] { opt.step(closure); });
    if (std::string(level) == "O2") {
      EXPECT_TRUE(contains(error, "closure")) << "OPT-05";
    } else {
      EXPECT_EQ(error, "");
    }
  }
}

TEST_F(HandleRules, AnOverflowInAClosureSkipsTheStep) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  auto handles = amp::initialize(model, optimizer, "O1", quiet());
  auto& [net, opt] = handles;
  double factor = 1.0;
  const auto closure = [&, &net = net, &opt = opt] {
    opt.zero_grad();
    const Tensor loss = net->forward(features()).to(torch::kFloat).mean() * factor;
    amp::scale_loss(loss, opt).backward();
    return loss;
  };
  EXPECT_TRUE(opt.step(closure).defined());
  const auto before = bytes_of(*model) + bytes_of(opt);
  const double scale = amp::loss_scaler().loss_scale();
  factor = INFINITY;
  EXPECT_FALSE(opt.step(closure).defined());
  EXPECT_EQ(bytes_of(*model) + bytes_of(opt), before);
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(amp::loss_scaler().loss_scale(), scale / 2);
  factor = 1.0;
  EXPECT_TRUE(opt.step(closure).defined());
  EXPECT_FALSE(amp::step_result(opt).skipped);
  EXPECT_NE(bytes_of(*model) + bytes_of(opt), before);
}

TEST_F(HandleRules, AClosureThatLeavesItsGradientsScaledIsAnError) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto handles = amp::initialize(model, optimizer, "O1", quiet());
  auto& [net, opt] = handles;
  const auto before = bytes_of(*model);
  bool delays = true;
  const auto closure = [&, &net = net, &opt = opt] {
    opt.zero_grad();
    const Tensor loss = net->forward(features()).to(torch::kFloat).mean();
    for (const bool delayed : {true, delays})
      amp::scale_loss(loss, opt, amp::ScaleLossOptions().delay_unscale(delayed)).backward({}, /*retain_graph=*/true);
    return loss;
  };
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { opt.step(closure); }), "still carries the loss scale"));
  EXPECT_EQ(bytes_of(*model), before);
  opt.zero_grad();
  delays = false;
  EXPECT_EQ(message_of([&, &opt = opt] { opt.step(closure); }), "");
  EXPECT_NE(bytes_of(*model), before);
}

TEST_F(HandleRules, AnOverflowInALaterEvaluationOfAClosureIsAnError) {
  Mlp model;
  torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
  auto handles = amp::initialize(model, optimizer, "O1", quiet());
  auto& [net, opt] = handles;
  int evaluations = 0;
  const auto closure = [&, &net = net, &opt = opt] {
    opt.zero_grad();
    const Tensor loss = net->forward(features()).square().mean() * (evaluations++ == 1 ? INFINITY : 1.0);
    amp::scale_loss(loss, opt).backward();
    return loss;
  };
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { opt.step(closure); }), "Use a fixed loss scale"));
}

TEST_F(HandleRules, LbfgsTrainsOnlyWithoutMasters) {
  Mlp model;
  torch::optim::LBFGS rejected(model->parameters(), 0.1);
  EXPECT_TRUE(contains(message_of([&] { (void)amp::initialize(model, rejected, "O2", quiet()); }), "LBFGS"));
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat) << "nothing was changed";
  torch::optim::LBFGS optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", quiet());
  const auto before = bytes_of(*model);
  opt.step([&, net = net, &opt = opt]() mutable {
    opt.zero_grad();
    auto loss = net->forward(features()).square().mean();
    loss.backward();
    return loss;
  });
  EXPECT_NE(bytes_of(*model), before);
}

TEST_F(HandleRules, OptimizersBehindABasePointerAreReturnedAsSuch) {
  Mlp model;
  std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<torch::optim::AdamW>(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
  static_assert(std::is_same_v<decltype(opt), std::unique_ptr<torch::optim::Optimizer>>);
  { amp::scale_loss(net->forward(features()).sum(), opt).backward(); }
  const auto before = bytes_of(*model);
  opt->step();
  EXPECT_NE(bytes_of(*model), before);
}

struct OwnOptimizer : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  int steps = 0;
  Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return torch::optim::SGD::step(closure);
  }
};

/// Evaluates the loss at shifted weights, as sharpness-aware optimizers do.
struct LooksAside : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    {
      const torch::NoGradGuard no_grad;
      for (auto& param : param_groups()[0].params()) param.add_(0.01);
    }
    return torch::optim::SGD::step(closure);
  }
};

TEST_F(HandleRules, AnOverflowAfterTheWeightsWereMovedIsAnError) {
  Mlp model;
  LooksAside optimizer(model->parameters(), 0.1);
  auto handles = amp::initialize(model, optimizer, "O1", quiet());
  auto& [net, opt] = handles;
  const auto closure = [&, &net = net, &opt = opt] {
    const Tensor loss = net->forward(features()).square().mean() * INFINITY;
    amp::scale_loss(loss, opt).backward();
    return loss;
  };
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { opt.step(closure); }), "after the optimizer had changed the weights"));
}

TEST_F(HandleRules, ACustomOptimizerIsWrappedByItsType) {
  Mlp model;
  OwnOptimizer optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  EXPECT_EQ(opt.steps, 1);
  auto unknown = std::make_unique<OwnOptimizer>(Mlp()->parameters(), torch::optim::SGDOptions(0.1));
  std::unique_ptr<torch::optim::Optimizer> erased = std::move(unknown);
  Mlp other;
  EXPECT_TRUE(contains(message_of([&] { (void)amp::initialize(other, erased, "O2", quiet()); }), "OwnOptimizer"));
}

TEST_F(HandleRules, OptimizersAndModelsMayBeDestroyedInAnyOrder) {
  auto model = std::make_unique<Mlp>();
  auto optimizer = std::make_unique<torch::optim::SGD>((*model)->parameters(), 0.1);
  auto scheduler = std::make_unique<torch::optim::StepLR>(*optimizer, 1, 0.5);
  auto result =
      std::make_unique<decltype(amp::initialize(*model, *optimizer))>(amp::initialize(*model, *optimizer, "O2", quiet()));
  const Tensor weight = (*model)->parameters().front(), before = weight.detach().clone();
  model.reset();
  train_step(result->first, result->second, features());
  result.reset();
  const Tensor trained = weight.detach().clone();
  EXPECT_FALSE(torch::equal(trained, before));
  EXPECT_NO_THROW(scheduler->step());  // the handle is gone: the rate goes nowhere, and nothing is touched
  scheduler.reset();
  optimizer.reset();
  EXPECT_TRUE(torch::equal(weight, trained));
  amp::reset();
  EXPECT_EQ(weight.use_count(), 1) << "nothing keeps the parameter alive";
}

}  // namespace
}  // namespace apex::test
