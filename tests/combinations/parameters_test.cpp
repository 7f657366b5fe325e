// Parameters that are frozen and unfrozen, added later, shared, without gradients, or sparse.
#include <apex_cpp/optimizers.h>

#include "tests/amp/saved.h"
#include "tests/combinations/support.h"

namespace apex::test::combinations {
namespace {

using Group = torch::optim::OptimizerParamGroup;
/// One Pair under amp beside plain parameters that are stepped by hand with the gradients written down.
class Parameters : public AmpTest, public ::testing::WithParamInterface<Case> {
 protected:
  const Kind& kind() const { return std::get<0>(GetParam()); }
  std::string level() const { return std::get<1>(GetParam()); }

  void start(const std::vector<Tensor>& trained) {
    optimizer = kind().make(trained);
    auto [handle, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
    net.emplace(std::move(handle));
    optimizer = std::move(opt);
    if (has_masters(level())) model->native.set_data(model->native.detach().to(torch::kFloat));
    for (const Tensor& param : trained) by_hand.push_back(plain_copy(param));
    reference = kind().make(by_hand);
  }
  Tensor plain_copy(const Tensor& param) const {
    return torch::ones_like(param, level() == "O3" ? torch::kHalf : torch::kFloat).requires_grad_();
  }
  void backward(int i, amp::ScaleLossOptions options = {}) {
    auto scaled = amp::scale_loss((*net)->forward(gradient(i, 0, 0)), *optimizer, options);
    scaled.backward();
    scaled.finish();
  }
  void set_grad(const Tensor& plain, const Tensor& grad) { plain.mutable_grad() = grad.to(plain.scalar_type()); }
  void expect_equal(size_t i, const Tensor& model_param) {
    EXPECT_EQ(bytes_of(master(i)), bytes_of(by_hand[i])) << i;
    EXPECT_EQ(bytes_of(model_param), bytes_of(by_hand[i].detach().to(model_param.scalar_type()))) << i;
  }
  /// Steps both, `low` and `native` by hand with `grad`.
  void expect_equal_step(const Tensor& grad) {
    for (const Tensor& plain : by_hand) set_grad(plain, grad);
    optimizer->step();
    reference->step();
    expect_equal(0, model->low);
    expect_equal(1, model->native);
  }
  Tensor master(size_t i) { return amp::master_params(*optimizer).at(i); }

  Pair model;
  OptimizerPtr optimizer, reference;
  std::optional<amp::Model<Pair>> net;
  std::vector<Tensor> by_hand;
};
INSTANTIATE_TEST_SUITE_P(All, Parameters, ::testing::Combine(::testing::ValuesIn(kinds()), kLevels), name_of);

// MW-01: frozen ones stay as they are. Unfrozen later, they are adopted at their next pass, as if they had been there always.
TEST_P(Parameters, FrozenThenUnfrozenThenFrozen) {
  model->low.set_requires_grad(false);
  start({model->low, model->native});
  for (int i = 0; i < 6; ++i) {
    const bool frozen = i < 2 || i >= 4;
    model->low.set_requires_grad(!frozen);
    optimizer->zero_grad();
    model->zero_grad();
    reference->zero_grad();
    backward(i);
    if (!frozen) set_grad(by_hand[0], gradient(i, 0, 0));
    set_grad(by_hand[1], gradient(i, 0, 0));
    optimizer->step();
    reference->step();
    expect_equal(1, model->native);
    if (i < 2) {
      EXPECT_TRUE(master(0).is_same(model->low));
    } else {
      expect_equal(0, model->low);
    }
  }
  EXPECT_EQ(master(0).is_same(model->low), !has_masters(level()));
}

// The new parameter is added in a new group: before the first pass, between two that accumulate, and after a step (APG-01..04,
// BUG-06).
TEST_P(Parameters, AddedBeforeBetweenAndAfterPasses) {
  for (const int when : {0, 1, 2}) {
    SCOPED_TRACE(when);
    model = Pair();
    by_hand.clear();
    start({model->native});
    by_hand.push_back(plain_copy(model->low));
    const auto add = [&] {
      optimizer->add_param_group(Group({model->low}));
      reference->add_param_group(Group({by_hand[1]}));
    };
    if (when == 0) add();
    backward(0);
    set_grad(by_hand[0], gradient(0, 0, 0));
    if (when == 0) set_grad(by_hand[1], gradient(0, 0, 0));
    if (when == 1) {
      model->low.mutable_grad().reset();  // of a pass whose scale nobody took out
      add();
    }
    if (when == 2) {
      optimizer->step();
      reference->step();
      add();
      optimizer->zero_grad();
      model->zero_grad();
      reference->zero_grad();
    }
    backward(1);
    const Tensor sum = when == 2 ? gradient(1, 0, 0) : gradient(0, 0, 0) + gradient(1, 0, 0);
    set_grad(by_hand[0], sum);
    set_grad(by_hand[1], when == 0 ? sum : gradient(1, 0, 0));
    optimizer->step();
    reference->step();
    expect_equal(0, model->native);
    expect_equal(1, model->low);
    amp::reset();
  }
}

TEST_P(Parameters, EmptyGroupsAndParametersWithoutGradients) {
  const Tensor unused = torch::ones({2}).requires_grad_();
  start({model->low, unused, model->native});
  optimizer->add_param_group(Group(std::vector<Tensor>{}));
  reference->add_param_group(Group(std::vector<Tensor>{}));
  for (int i = 0; i < 3; ++i) {
    optimizer->zero_grad();
    model->zero_grad();
    backward(i);
    for (const size_t p : {0, 2}) set_grad(by_hand[p], gradient(i, 0, 0));
    optimizer->step();
    reference->step();
  }
  expect_equal(0, model->low);
  expect_equal(2, model->native);
  EXPECT_TRUE(torch::equal(unused, torch::ones({2})));
  EXPECT_FALSE(unused.grad().defined());
}

TEST_P(Parameters, ATensorRegisteredTwiceIsSteppedOnce) {
  model->native = model->register_parameter("tied", model->low);  // `native` itself stays registered, unused
  const auto tied = std::vector<Tensor>{model->low};
  optimizer = kind().make(tied);
  auto [handle, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  by_hand = {plain_copy(model->low)};
  reference = kind().make(by_hand);
  for (int i = 0; i < 3; ++i) {
    opt->zero_grad();
    model->zero_grad();
    { amp::scale_loss(handle->forward(gradient(i, 0, 0)), opt).backward(); }
    set_grad(by_hand[0], 2 * gradient(i, 0, 0));
    opt->step();
    reference->step();
  }
  optimizer = std::move(opt);
  expect_equal(0, model->low);
}

// ---- delayed unscaling ----

TEST_P(Parameters, SteppingScaledGradientsIsAnError) {
  start({model->low, model->native});
  backward(0, amp::ScaleLossOptions().delay_unscale(true));
  const auto before = bytes_of(*optimizer) + bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&] { optimizer->step(); }), "'low'"));
  EXPECT_TRUE(contains(message_of([&] { optimizer->step(); }), "delay_unscale"));
  EXPECT_TRUE(contains(message_of([&] { amp::clip_grad_norm_(*optimizer, 1.0); }), "delay_unscale"));
  EXPECT_EQ(bytes_of(*optimizer) + bytes_of(*model), before);
  backward(1);
  expect_equal_step(gradient(0, 0, 0) + gradient(1, 0, 0));
}

TEST_P(Parameters, ScaleChangesBetweenDelayedPassesAreAccountedFor) {
  start({model->low, model->native});
  backward(0, amp::ScaleLossOptions().delay_unscale(true));
  amp::loss_scaler().restore(32.0, 0);
  backward(1, amp::ScaleLossOptions().delay_unscale(true));
  amp::loss_scaler().restore(2.0, 0);
  backward(2);
  expect_equal_step(gradient(0, 0, 0) + gradient(1, 0, 0) + gradient(2, 0, 0));
}

TEST_P(Parameters, AnExceptionRestoresDelayedGradients) {
  start({model->low, model->native});
  for (const bool delayed : {false, true}) backward(delayed, amp::ScaleLossOptions().delay_unscale(delayed));
  EXPECT_THROW(
      {
        auto scaled = amp::scale_loss((*net)->forward(gradient(5, 0, 0)), *optimizer);
        scaled.backward();
        throw std::runtime_error("the program's own");
      },
      std::runtime_error);
  backward(2);
  expect_equal_step(gradient(0, 0, 0) + gradient(1, 0, 0) + gradient(2, 0, 0));
}

// ---- what amp refuses ----

class Refused : public AmpTest {
 protected:
  Pair a, b;
};

TEST_F(Refused, OneParameterInTwoOptimizersWithMasters) {
  torch::optim::SGD first({a->low, a->native}, 0.5), second({a->low, b->low}, 0.5);
  const auto before = bytes_of(*a);
  const auto error = message_of([&] { (void)amp::initialize(std::tie(a, b), std::tie(first, second), "O2", quiet()); });
  EXPECT_TRUE(contains(error, "'model0.low'"));
  EXPECT_TRUE(contains(error, "optimizers 0 and 1"));
  EXPECT_EQ(bytes_of(*a), before);
}

TEST_F(Refused, OneParameterAddedToASecondOptimizerWithMasters) {
  torch::optim::SGD first({a->low}, 0.5), second({b->low}, 0.5);
  auto [nets, opts] = amp::initialize(std::tie(a, b), std::tie(first, second), "O2", quiet());
  auto& [opt_a, opt_b] = opts;
  { amp::scale_loss(std::get<0>(nets)->forward(gradient(0, 0, 0)), opt_a).backward(); }
  EXPECT_TRUE(contains(message_of([&, &opt = opt_b] { opt.add_param_group(Group({a->low})); }), "'model0.low'"));
  EXPECT_EQ(opt_b.param_groups().size(), 1u);
}

// Without masters it is as in plain PyTorch, as long as only one of the two takes the pass.
TEST_F(Refused, OneParameterInTwoOptimizersOfOneBlock) {
  torch::optim::SGD first({a->low}, 0.5), second({a->low}, 0.25);
  auto [net, opts] = amp::initialize(a, std::tie(first, second), "O1", quiet().loss_scale(8.0));
  auto& [opt_a, opt_b] = opts;
  const Tensor x = gradient(0, 0, 0);
  EXPECT_TRUE(contains(message_of([&, net = net, &one = opt_a, &two = opt_b]() mutable {
                         (void)amp::scale_loss(net->forward(x), {one, two});
                       }),
                       "'low'"));
  { amp::scale_loss(net->forward(x), opt_a).backward(); }
  opt_a.step();
  a->zero_grad();
  { amp::scale_loss(net->forward(x), opt_b).backward(); }
  opt_b.step();
  EXPECT_TRUE(torch::equal(a->low, torch::ones({3}) - 0.75 * x));
}

struct EmbedImpl : torch::nn::Module {
  EmbedImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true)));
    scale = register_parameter("scale", torch::ones({3}));
  }
  Tensor forward(const Tensor& x) { return (table(x).to(torch::kFloat) * scale.to(torch::kFloat)).sum(); }
  torch::nn::Embedding table{nullptr};
  Tensor scale;
};
TORCH_MODULE(Embed);

class Sparse : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, Sparse, ::testing::Values("O1", "O2", "O3", "O5", "O6"));

TEST_P(Sparse, GradientsAreAnErrorThatNamesThemAndUndoesThePass) {
  for (const auto& [delayed, scale] : {std::pair(false, "8"), std::pair(true, "8"), std::pair(false, "dynamic")}) {
    Pair dense;
    Embed embed;
    torch::optim::SGD first(dense->parameters(), 0.5), second(embed->parameters(), 0.5);
    auto [nets, opts] = amp::initialize(std::tie(dense, embed), std::tie(first, second), GetParam(),
                                        quiet().loss_scale(scale).max_loss_scale(8.0));
    auto& [opt_a, opt_b] = opts;
    auto& [net_a, net_b] = nets;
    { amp::scale_loss(net_a->forward(gradient(0, 0, 0)), opt_a).backward(); }
    const Tensor grad = amp::master_params(opt_a)[0].grad().clone();
    auto scaled = amp::scale_loss(net_a->forward(gradient(1, 0, 0)) + net_b->forward(torch::tensor({1, 2})), {opt_a, opt_b},
                                  amp::ScaleLossOptions().delay_unscale(delayed));
    scaled.backward();
    EXPECT_TRUE(contains(message_of([&] { scaled.finish(); }), "'model1.table.weight'"));
    EXPECT_TRUE(torch::equal(amp::master_params(opt_a)[0].grad(), grad)) << "the gradients of before are back";
    EXPECT_FALSE(embed->table->weight.grad().defined());
    amp::reset();
  }
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    weight = register_parameter("weight", torch::ones({3}));
    count = register_parameter("count", torch::ones({2}, torch::kLong), /*requires_grad=*/false);
    phase = register_parameter("phase", torch::ones({2}, torch::kComplexFloat), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) { return (weight * x.to(weight.dtype())).sum(); }
  Tensor weight, count, phase;
};
TORCH_MODULE(Mixed);

class OtherDtypes : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, OtherDtypes, ::testing::Values("O0", "O1", "O2", "O3", "O5", "O6"));

TEST_P(OtherDtypes, UntrainedParametersAreNotChanged) {
  Mixed model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  opt.zero_grad();
  { amp::scale_loss(net->forward(gradient(0, 0, 0)), opt).backward(); }
  opt.step();
  EXPECT_TRUE(torch::equal(model->weight.to(torch::kFloat), torch::ones({3}) - 0.5 * gradient(0, 0, 0)));
  EXPECT_TRUE(torch::equal(model->count, torch::ones({2}, torch::kLong)));
  EXPECT_TRUE(torch::equal(model->phase, torch::ones({2}, torch::kComplexFloat)));
}

TEST_P(OtherDtypes, TrainedParametersAreAnErrorThatNamesThem) {
  Mixed model;
  model->phase.set_requires_grad(true);
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  const auto before = bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&] { (void)amp::initialize(model, optimizer, GetParam(), quiet()); }), "'phase'"));
  EXPECT_EQ(bytes_of(*model), before);
}

// The masters are saved in the order of the groups, whenever they were made.
TEST_F(AmpTest, ResumesWithAMasterCreatedLate) {
  const auto make = [](bool frozen) {
    Pair model;
    model->low.set_requires_grad(!frozen);
    torch::optim::Adam optimizer(model->parameters(), 0.25);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
    opt.zero_grad();
    return std::make_tuple(model, net, std::move(opt));
  };
  const auto step = [](auto& run, int i) {
    auto& [model, net, opt] = run;
    opt.zero_grad();
    { amp::scale_loss(net->forward(gradient(i, 0, 0)) + 2 * (model->low * 0.5).sum().to(torch::kFloat), opt).backward(); }
    opt.step();
  };
  auto late = make(true);
  step(late, 0);
  std::get<0>(late)->low.set_requires_grad(true);
  step(late, 1);
  const auto file = saved(std::get<2>(late));
  auto fresh = make(false);
  restore(std::get<2>(fresh), file);
  for (size_t i = 0; i < 2; ++i) {
    std::get<0>(fresh)->parameters()[i].detach().copy_(std::get<0>(late)->parameters()[i]);
  }
  step(late, 2);
  step(fresh, 2);
  EXPECT_EQ(bytes_of(std::get<2>(fresh)), bytes_of(std::get<2>(late)));
  EXPECT_EQ(bytes_of(*std::get<0>(fresh)), bytes_of(*std::get<0>(late)));
}

}  // namespace
}  // namespace apex::test::combinations
