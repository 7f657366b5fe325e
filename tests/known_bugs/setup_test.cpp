// Defects of Apex around initialize: repeated calls, half models, the wrong order, no GPU.
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/optimizers.h>

#include "tests/amp/saved.h"
#include "tests/known_bugs/known_bugs.h"

namespace apex::test {
namespace {

using torch::Tensor;

Tensor loss_of(amp::Model<Mlp>& net, double factor = 1.0) { return net->forward(features() * factor).square().mean(); }

TEST_F(KnownBugs, Bug06AGroupMayBeAddedBeforeTheFirstBackward) {
  Mlp model;
  torch::optim::SGD optimizer(model->fc1->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  opt.add_param_group(torch::optim::OptimizerParamGroup(model->fc2->parameters()));
  const auto before = bytes_of(model->fc2->weight);
  { amp::scale_loss(loss_of(net), opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(model->fc2->weight), before);
}

// Apex refused the model, which its first call had made half. The same trained by hand: O2 with one layer, then with both.
TEST_F(KnownBugs, Bug07ReinitializeAfterUnfreezing) {
  for (const bool reset_between : {false, true}) {
    Mlp model;
    model->fc1->weight.set_requires_grad(false);
    model->fc1->bias.set_requires_grad(false);
    torch::optim::SGD head(model->fc2->parameters(), 0.5);
    auto [net, opt] = amp::initialize(model, head, "O2", quiet().loss_scale(8.0));
    { amp::scale_loss(loss_of(net), opt).backward(); }
    opt.step();
    const Tensor between = model->fc1->weight.detach().clone();
    if (reset_between) amp::reset();

    for (auto& param : model->parameters()) param.set_requires_grad(true);
    torch::optim::SGD all(model->parameters(), 0.5);
    auto [net2, opt2] = amp::initialize(model, all, "O2", quiet().loss_scale(8.0));
    EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kHalf);
    EXPECT_TRUE(torch::equal(model->fc1->weight, between)) << "no value changes";
    opt2.zero_grad();
    { amp::scale_loss(loss_of(net2), opt2).backward(); }
    const Tensor grad = model->fc1->weight.grad().to(torch::kFloat) / 8;
    opt2.step();
    EXPECT_TRUE(torch::equal(amp::master_params(opt2)[0], between.to(torch::kFloat) - 0.5 * grad));
    EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "initialize again"));
    EXPECT_TRUE(
        contains(message_of([&, &net = net2, &opt = opt] { (void)amp::scale_loss(loss_of(net), opt); }), "newest call"));
    amp::reset();
  }
}

// Masters are made at an optimizer's first use, and some optimizers keep them themselves.
TEST_F(KnownBugs, Bug07InitializingAgainRetiresOptimizersWithMastersOutOfSight) {
  const auto expect_retired = [](auto&& earlier, bool is_used, const std::string& level) {
    Mlp model;
    auto original = earlier(model->parameters());
    auto [net, opt] = amp::initialize(model, original, level, quiet().loss_scale(8.0));
    if (is_used) train_step(net, opt, features());
    torch::optim::Adam newer(model->parameters(), 0.1);
    auto [net2, opt2] = amp::initialize(model, newer, level, quiet().loss_scale(8.0));
    const auto before = bytes_of(*model);
    EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "newest call")) << level;
    EXPECT_TRUE(contains(message_of([&, &net = net2, &opt = opt] { (void)amp::scale_loss(loss_of(net), opt); }), "newest call"))
        << level;
    EXPECT_EQ(bytes_of(*model), before) << level;
    train_step(net2, opt2, features());
    EXPECT_NE(bytes_of(*model), before) << level;
    amp::reset();
  };
  const auto sgd = [](const std::vector<Tensor>& params) { return torch::optim::SGD(params, 0.1); };
  const auto with_remainders = [](const std::vector<Tensor>& params) {
    return optimizers::FusedAdam(params,
                                 optimizers::FusedAdamOptions(0.1).master_storage(optimizers::MasterStorage::remainder16));
  };
  for (const char* level : {"O2", "O5", "O6"}) expect_retired(sgd, /*is_used=*/false, level);
  for (const bool is_used : {false, true}) expect_retired(with_remainders, is_used, "O5");
}

TEST_F(KnownBugs, Bug07InitializingAgainRetiresAnOptimizerThatWasGivenTheWeightsLater) {
  Mlp encoder, other;
  auto enc = amp::initialize(encoder, "O2", quiet().loss_scale(8.0));
  torch::optim::SGD optimizer(other->parameters(), 0.1), newer(encoder->parameters(), 0.1);
  auto [net, opt] = amp::initialize(other, optimizer, "O2", quiet().loss_scale(8.0));
  opt.add_param_group(torch::optim::OptimizerParamGroup(encoder->parameters()));
  auto [enc2, opt2] = amp::initialize(encoder, newer, "O2", quiet().loss_scale(8.0));
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "newest call"));
}

TEST_F(KnownBugs, Bug07InitializingAgainLeavesOtherOptimizersInUse) {
  for (const char* level : {"O0", "O1", "O3", "O4"}) {
    Mlp model;
    torch::optim::SGD original(model->parameters(), 0.1), newer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, original, level, quiet().loss_scale(8.0));
    auto [net2, opt2] = amp::initialize(model, newer, level, quiet().loss_scale(8.0));
    EXPECT_EQ(message_of([&net = net2, &opt = opt] { train_step(net, opt, features()); }), "") << level << ", without masters";
    amp::reset();
  }
  Mlp again, other, frozen;
  for (auto& param : frozen->parameters()) param.set_requires_grad(false);
  auto with_frozen = other->parameters();
  for (const auto& param : frozen->parameters()) with_frozen.push_back(param);
  torch::optim::SGD of_again(again->parameters(), 0.1), of_other(with_frozen, 0.1), newer(again->parameters(), 0.1);
  auto [nets, opts] = amp::initialize(std::tie(again, other, frozen), std::tie(of_again, of_other), "O2", quiet());
  auto [nets2, opt] = amp::initialize(std::tie(again, frozen), newer, "O2", quiet());
  EXPECT_TRUE(contains(message_of([&opts = opts] { std::get<0>(opts).step(); }), "newest call"));
  EXPECT_EQ(message_of([&nets = nets, &opts = opts] { train_step(std::get<1>(nets), std::get<1>(opts), features()); }), "")
      << "a model that was not given again";
}

TEST_F(KnownBugs, Bug07AParameterUnfrozenInTheOptimizerIsTrained) {
  Mlp model;
  model->fc1->weight.set_requires_grad(false);
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
  train_step(net, opt, features());
  const auto before = bytes_of(model->fc1->weight);
  model->fc1->weight.set_requires_grad(true);
  train_step(net, opt, features());
  EXPECT_NE(bytes_of(model->fc1->weight), before);
  EXPECT_EQ(amp::master_params(opt)[0].scalar_type(), torch::kFloat);
}

TEST_F(KnownBugs, Bug07AModelAlreadyInHalfIsStillAnError) {
  Mlp model;
  model->to(torch::kHalf);
  EXPECT_TRUE(contains(message_of([&] { (void)amp::initialize(model, "O2", quiet()); }), "'fc1.weight'"));
}

// Each call of Apex's put a further layer around forward and around every patched function.
TEST_F(KnownBugs, Bug08InitializingAgainDoesNotNestCasts) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    Mlp once, often;
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < once->parameters().size(); ++i) often->parameters()[i].copy_(once->parameters()[i]);
    }
    const auto run = [&](Mlp& model, int calls) {
      Tensor output;
      for (int i = 0; i < calls; ++i) {
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
        if (i + 1 < calls) continue;
        train_step(net, opt, features());
        output = net->forward(features());
      }
      return output;
    };
    EXPECT_EQ(bytes_of(run(often, 4)), bytes_of(run(once, 1))) << level;
    EXPECT_EQ(bytes_of(*often), bytes_of(*once)) << level;
    amp::reset();
  }
}

TEST_F(KnownBugs, Bug08AnotherLevelReplacesTheFirst) {
  Mlp model;
  auto first = amp::initialize(model, "O2", quiet());
  auto second = amp::initialize(model, "O1", quiet());
  for (const auto& param : model->parameters()) EXPECT_EQ(param.scalar_type(), torch::kFloat);
  EXPECT_EQ(second->forward(features()).scalar_type(), torch::kHalf);
  auto third = amp::initialize(second, "O0", quiet());
  EXPECT_EQ(third->forward(features()).scalar_type(), torch::kFloat);
  auto fourth = amp::initialize(third, "O5", quiet());
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kBFloat16);
}

// Memory grew with every call, and during evaluation.
TEST_F(KnownBugs, Bug09HandlesFreeEverything) {
  std::weak_ptr<void> session;
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> master(Tensor(torch::ones({1})).getIntrusivePtr());
  {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
    train_step(net, opt, features());
    session = amp::detail::current_session();
    master = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(amp::master_params(opt)[0].getIntrusivePtr());
    amp::reset();
    EXPECT_FALSE(session.expired()) << "the handles still work with it";
  }
  EXPECT_TRUE(session.expired());
  EXPECT_TRUE(master.expired());
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 3; ++i) net->forward(features());
  EXPECT_EQ(amp::detail::current_session()->cast_rules->cache().size(), 0u);
}

TEST_F(KnownBugs, Bug11AModelIsInitializedLoadedAndRunOnACpu) {  // CHK-09
  Mlp trained, model;
  const auto file = saved(trained);
  auto net = amp::initialize(model, "O2", quiet());
  restore(net, file);
  EXPECT_TRUE(torch::equal(model->fc1->weight, trained->fc1->weight.to(torch::kHalf)));
  EXPECT_EQ(net->forward(features()).scalar_type(), torch::kFloat);
}

TEST_F(KnownBugs, Bug33ALevelWithTheDigitZeroIsAnErrorWithAHint) {
  Mlp model;
  const auto error = message_of([&] { (void)amp::initialize(model, "01", quiet()); });
  EXPECT_TRUE(contains(error, "01"));
  EXPECT_TRUE(contains(error, "O1"));
  EXPECT_TRUE(contains(error, "letter O"));
}

}  // namespace
}  // namespace apex::test
