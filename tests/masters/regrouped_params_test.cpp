// Programs that edit an optimizer's groups. A parameter that is replaced, or whose group is erased, is dropped. One that
// returns, or moves to another optimizer, is trained there with its master.
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using ParamGroup = torch::optim::OptimizerParamGroup;
using Optimizers = std::vector<torch::optim::Optimizer*>;

constexpr double kLearningRate = 1.0 / 1024, kMostScale = 128;

std::vector<ParamGroup> one_group_a_layer(const Mlp& model) {
  std::vector<ParamGroup> groups;
  for (const auto& layer : {model->fc1, model->fc2}) groups.emplace_back(layer->parameters());
  return groups;
}
torch::optim::SGDOptions sgd_options() { return torch::optim::SGDOptions(kLearningRate).momentum(0.5); }

/// Two layers with a group each, and a second optimizer that trains another model.
class RegroupedParams : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    std::vector<Mlp> models{Mlp(), Mlp()};
    std::vector<std::shared_ptr<torch::optim::SGD>> originals{
        std::make_shared<torch::optim::SGD>(one_group_a_layer(models[0]), sgd_options()),
        std::make_shared<torch::optim::SGD>(models[1]->parameters(), sgd_options())};
    auto options = quiet();
    if (looks_for_overflow()) options.loss_scale("dynamic").max_loss_scale(kMostScale);
    std::tie(nets, opts) = amp::initialize(models, originals, GetParam(), options);
  }
  static bool looks_for_overflow() { return std::string(GetParam()) == "O1" || std::string(GetParam()) == "O2"; }
  static bool has_masters() { return std::string(GetParam()) == "O2" || std::string(GetParam()) >= "O5"; }

  torch::optim::SGD& opt() { return *opts[0]; }
  torch::optim::SGD& opt2() { return *opts[1]; }
  Tensor loss() { return nets[0]->forward(features()).square().sum(); }
  void zero_grad() {
    for (auto& net : nets) net->zero_grad();
  }
  void step(const Optimizers& optimizers) {
    zero_grad();
    { amp::scale_loss(loss(), optimizers).backward(); }
    for (auto* optimizer : optimizers) optimizer->step();
  }
  /// As in Gaussian splatting: a new leaf in the model and in the group, with the old one's state.
  void replace_weight() {
    torch::NoGradGuard no_grad;
    Tensor& place = opt().param_groups()[0].params()[0];
    const Tensor fresh = nets[0]->fc1->weight.detach().clone().requires_grad_();
    auto state = std::move(opt().state()[place.unsafeGetTensorImpl()]);
    opt().state().erase(place.unsafeGetTensorImpl());
    opt().state()[fresh.unsafeGetTensorImpl()] = std::move(state);
    place = fresh;
    nets[0]->fc1->weight = fresh;
  }
  ParamGroup take_out_last_group() {
    ParamGroup group = opt().param_groups().back();
    opt().param_groups().pop_back();
    return group;
  }

  std::vector<amp::Model<Mlp>> nets;
  std::vector<std::shared_ptr<torch::optim::SGD>> opts;
};

TEST_P(RegroupedParams, AReplacedTensorIsReleasedAndTheNewOneTrains) {
  step({&opt()});
  for (int times = 0; times < 3; ++times) {
    const Tensor old_param = nets[0]->fc1->weight, old_stepped = opt().param_groups()[0].params()[0];
    const bool is_same_tensor = old_param.is_same(old_stepped);
    replace_weight();
    const auto before = bytes_of(nets[0]->fc1->weight);
    step({&opt()});
    // The layer still lists the parameter that it registered.
    if (times > 0) {
      EXPECT_EQ(old_param.use_count(), is_same_tensor ? 2u : 1u);
    }
    if (!is_same_tensor) {
      EXPECT_EQ(old_stepped.use_count(), 1u);
    }
    EXPECT_NE(bytes_of(nets[0]->fc1->weight), before);
    EXPECT_EQ(opt().state().size(), 4u);
  }
}

TEST_P(RegroupedParams, AnOverflowInAnErasedGroupSkipsNoStep) {
  step({&opt()});
  take_out_last_group();
  const auto fc1 = bytes_of(*nets[0]->fc1), fc2 = bytes_of(*nets[0]->fc2);
  zero_grad();
  {
    auto scaled_loss = amp::scale_loss(loss(), opt());
    scaled_loss.backward();
    nets[0]->fc2->bias.mutable_grad().fill_(kInf);
  }
  opt().step();
  EXPECT_FALSE(amp::step_result(opt()).skipped);
  EXPECT_NE(bytes_of(*nets[0]->fc1), fc1);
  EXPECT_EQ(bytes_of(*nets[0]->fc2), fc2);
}

/// The group as the model's parameters, and as its tensors in the optimizer: masters if there are any.
TEST_P(RegroupedParams, AGroupMovedToAnotherOptimizerIsTrainedThere) {
  for (const bool as_in_group : {false, true}) {
    for (const int in_block : {0, 1, 2}) {
      AmpTest::TearDown();
      SetUp();
      step({&opt()});
      const auto group = take_out_last_group();
      for (const Tensor& param : as_in_group ? group.params() : nets[0]->fc2->parameters())
        opt2().param_groups()[0].params().push_back(param);
      const auto before = bytes_of(*nets[0]->fc2);
      const std::vector<Optimizers> lists{{&opt(), &opt2()}, {&opt2(), &opt()}, {&opt2()}};
      step(lists[in_block]);
      EXPECT_NE(bytes_of(*nets[0]->fc2), before) << as_in_group << in_block;
      const Tensor stepped = opt2().param_groups()[0].params().back();
      EXPECT_EQ(stepped.is_same(group.params().back()), as_in_group || !has_masters());
      EXPECT_EQ(stepped.scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(nets[0]->fc2->bias, stepped.to(nets[0]->fc2->bias.scalar_type())));
    }
  }
}

TEST_P(RegroupedParams, AGroupThatReturnsKeepsItsState) {
  for (const bool as_in_group : {false, true}) {
    AmpTest::TearDown();
    SetUp();
    step({&opt()});
    const auto momentum = [this] {
      const Tensor stepped = opt().param_groups().back().params().back();
      return static_cast<torch::optim::SGDParamState&>(*opt().state().at(stepped.unsafeGetTensorImpl()))
          .momentum_buffer()
          .clone();
    };
    const Tensor kept = momentum();
    auto group = take_out_last_group();
    step({&opt()});
    const auto fc2 = bytes_of(*nets[0]->fc2);
    const Tensor master = group.params().back();
    if (!as_in_group) group.params() = nets[0]->fc2->parameters();
    opt().param_groups().push_back(group);
    zero_grad();
    opt().step();  // without gradients: sorts the group, and steps nothing
    EXPECT_TRUE(torch::equal(momentum(), kept)) << as_in_group;
    step({&opt()});
    EXPECT_NE(bytes_of(*nets[0]->fc2), fc2);
    const Tensor stepped = opt().param_groups().back().params().back();
    if (as_in_group) {
      EXPECT_TRUE(stepped.is_same(master));
    }
    EXPECT_EQ(opt().state().size(), 4u);
    EXPECT_EQ(opt().state().count(stepped.unsafeGetTensorImpl()), 1u);
    EXPECT_TRUE(torch::equal(nets[0]->fc2->bias, stepped.to(nets[0]->fc2->bias.scalar_type())));
  }
}

/// The model's zero_grad drops the gradients of a group that is out, as without amp; without it they stay for the next pass.
TEST_P(RegroupedParams, AGroupThatReturnsHasTheGradientsThatTheModelHas) {
  const auto trained = [this](bool drops, bool drops_by_hand) {
    AmpTest::TearDown();
    SetUp();
    step({&opt()});
    zero_grad();
    { amp::scale_loss(loss(), opt()).backward(); }
    const ParamGroup group = take_out_last_group();
    opt().step();
    if (drops) zero_grad();
    for (const Tensor& each : group.params()) {
      if (drops_by_hand) each.mutable_grad().reset();
    }
    opt().param_groups().push_back(group);
    { amp::scale_loss(loss(), opt()).backward(); }
    opt().step();
    return bytes_of(*nets[0]->fc2);
  };
  EXPECT_EQ(trained(true, false), trained(true, true));
  EXPECT_NE(trained(false, false), trained(true, false));
}

TEST_P(RegroupedParams, AMasterThatReturnsTakesWritesToTheModel) {
  step({&opt()});
  const auto group = take_out_last_group();
  step({&opt()});
  {
    torch::NoGradGuard no_grad;
    nets[0]->fc2->bias.data().fill_(3);
  }
  opt().param_groups().push_back(group);
  zero_grad();
  opt().step();
  EXPECT_TRUE(torch::equal(amp::master_params(opt()).back(), torch::full({3}, 3.0f)));
  EXPECT_TRUE(torch::equal(nets[0]->fc2->bias.to(torch::kFloat), torch::full({3}, 3.0f)));
}

TEST_P(RegroupedParams, ErasingAGroupInsideABlockStillUnscalesItsGradients) {
  for (const bool delayed : {false, true}) {
    AmpTest::TearDown();
    SetUp();
    step({&opt()});
    zero_grad();
    auto scaled_loss = amp::scale_loss(loss(), opt(), amp::ScaleLossOptions().delay_unscale(delayed));
    scaled_loss.backward();
    const Tensor scaled = nets[0]->fc2->bias.grad().to(torch::kFloat).clone();
    const ParamGroup group = take_out_last_group();
    opt().add_param_group(ParamGroup({torch::ones({1}).requires_grad_()}));
    scaled_loss.finish();
    if (delayed) amp::scale_loss(loss() * 0, opt()).backward();
    const double scale = looks_for_overflow() ? kMostScale : 1;
    const Tensor unscaled = (has_masters() ? group.params().back() : nets[0]->fc2->bias).grad();
    ASSERT_TRUE(unscaled.defined()) << delayed;
    EXPECT_TRUE(torch::equal(unscaled, scaled / scale)) << delayed;
  }
}

TEST_P(RegroupedParams, AMasterInTwoOptimizersIsAnError) {
  step({&opt()});
  opt2().param_groups()[0].params().push_back(opt().param_groups()[1].params()[0]);
  const auto error = message_of([&] { step({&opt2()}); });
  EXPECT_EQ(error.empty(), !has_masters());
  if (has_masters()) {
    EXPECT_TRUE(contains(error, "keeps the master weight of 'model0.fc2.weight'"));
  }
}

/// Gradients of another optimizer's block are an error only for parameters that are still in a group.
TEST_P(RegroupedParams, TheUnclaimedGradientOfARemovedParameterIsNoError) {
  step({&opt()});
  step({&opt2(), &opt()});
  { amp::scale_loss(loss(), opt2()).backward(); }
  take_out_last_group();
  nets[0]->fc1->zero_grad();
  EXPECT_EQ(message_of([&] { amp::scale_loss(loss(), opt()).backward(); }), "");
}

INSTANTIATE_TEST_SUITE_P(Levels, RegroupedParams, ::testing::Values("O0", "O1", "O2", "O4", "O5", "O6"));

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// A fused optimizer writes the model's parameters itself. It finds them by group and position.
class RegroupedFusedParams : public AmpTest, public ::testing::WithParamInterface<bool> {};

TEST_P(RegroupedFusedParams, FollowTheirMasters) {
  const std::vector<std::function<void(std::vector<ParamGroup>&)>> changes = {
      [](auto& groups) { groups.erase(groups.begin()); },
      [](auto& groups) { std::swap(groups[0].params(), groups[1].params()); },
      [](auto& groups) { std::swap(groups[0].params()[0], groups[1].params()[0]); },
  };
  for (const auto& change : changes) {
    torch::manual_seed(3);
    torch::nn::Sequential two_layers(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    const auto params = two_layers->parameters();
    std::vector<ParamGroup> groups{ParamGroup({params[0], params[1]}), ParamGroup({params[2], params[3]})};
    optimizers::FusedSGD sgd(groups, optimizers::FusedSGDOptions(kLearningRate).materialize_master_grads(GetParam()));
    auto [net, opt] = amp::initialize(two_layers, sgd, "O5", quiet());
    const auto train = [&, &net = net, &opt = opt] {
      opt.zero_grad();
      { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
      opt.step();
    };
    train();
    std::vector<std::pair<Tensor, Tensor>> pairs;  // master, parameter
    for (size_t i = 0; i < params.size(); ++i) pairs.emplace_back(opt.param_groups()[i / 2].params()[i % 2], params[i]);
    change(opt.param_groups());
    const auto in_groups = amp::master_params(opt);
    const auto before = copies_of(in_groups);
    train();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(torch::equal(in_groups[i], before[i])) << i;
    for (const auto& [master, param] : pairs) EXPECT_TRUE(torch::equal(param, master.to(torch::kBFloat16)));
  }
}

/// As in Apex, whose groups have the count. While a group is out, its state is under the model's parameters.
TEST_P(RegroupedFusedParams, KeepTheirCountOfStepsWhereTheyAreTakenOutAndPutBack) {
  for (const int way : {0, 1, 2}) {
    AmpTest::TearDown();
    Mlp model;
    const auto options = optimizers::FusedAdamOptions(kLearningRate).materialize_master_grads(GetParam());
    optimizers::FusedAdam adam(one_group_a_layer(model), options);
    auto [net, opt] = amp::initialize(model, adam, "O5", quiet());
    const auto train = [&, &net = net, &opt = opt] {
      opt.zero_grad();
      { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
      opt.step();
    };
    for (int i = 0; i < 3; ++i) train();
    ParamGroup group = opt.param_groups().back();
    opt.param_groups().pop_back();
    train();
    if (way == 0) group.params() = net->fc2->parameters();
    way == 2 ? opt.add_param_group(group) : opt.param_groups().push_back(group);
    train();
    EXPECT_EQ(opt.steps_taken(0), 5) << way;
    EXPECT_EQ(opt.steps_taken(1), 4) << way;
  }
}
INSTANTIATE_TEST_SUITE_P(Orders, RegroupedFusedParams, ::testing::Bool());

TEST(ParamGroupsSnapshot, DetectsAnyChangeOfTensorPositionOrSize) {
  const Tensor a = torch::ones({1}), b = torch::ones({1});
  std::vector<ParamGroup> groups{ParamGroup({a, b}), ParamGroup(std::vector<Tensor>{})};
  const amp::detail::ParamGroupsSnapshot seen(groups);
  EXPECT_TRUE(seen.matches(groups));
  const auto expect_mismatch_after = [&](const std::function<void(std::vector<ParamGroup>&)>& change) {
    auto changed = groups;
    change(changed);
    EXPECT_FALSE(seen.matches(changed));
  };
  expect_mismatch_after([](auto& changed) { changed[0].params()[0] = torch::ones({1}); });
  expect_mismatch_after([](auto& changed) { std::swap(changed[0].params()[0], changed[0].params()[1]); });
  expect_mismatch_after([](auto& changed) { changed[0].params().pop_back(); });
  expect_mismatch_after([](auto& changed) { std::swap(changed[0], changed[1]); });
  expect_mismatch_after([](auto& changed) { changed.pop_back(); });
  expect_mismatch_after([&](auto& changed) { changed[1].params().push_back(a); });
}

}  // namespace
}  // namespace apex::test
