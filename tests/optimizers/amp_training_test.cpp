// The fused optimizers as static types under amp: handles, groups, several losses.
#include <apex_cpp/amp.h>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;
using namespace apex::optimizers;

nn::Linear make_linear(int64_t seed) {
  nn::Linear net(5, 4);
  const at::NoGradGuard no_grad;
  for (auto& param : net->parameters()) param.copy_(values(param.sizes(), seed++));
  return net;
}

amp::InitializeOptions quiet() { return amp::InitializeOptions().verbosity(0); }

TEST(Handle, HasTheOptimizersClass) {
  nn::Linear net = make_linear(1);
  FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1));
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  FusedAdam& as_adam = opt;
  amp::scale_loss(model->forward(values({3, 5}, 2)).square().mean(), opt).backward();
  opt.step();
  EXPECT_EQ(as_adam.steps_taken(), 1);
  EXPECT_EQ(opt.param_groups()[0].params()[0].scalar_type(), at::kFloat);
  EXPECT_EQ(net->weight.scalar_type(), at::kHalf);
}

TEST(Handle, OfAPointerHasTheOptimizersClass) {
  nn::Linear net = make_linear(1);
  auto unique = std::make_unique<FusedScheduleFreeAdamW>(net->parameters(), FusedScheduleFreeAdamWOptions(0.01));
  auto [model, opt] = amp::initialize(net, unique, "O2", quiet());
  static_assert(std::is_same_v<decltype(opt), std::unique_ptr<FusedScheduleFreeAdamW>>);
  opt->train();
  amp::scale_loss(model->forward(values({3, 5}, 2)).square().mean(), opt).backward();
  opt->step();
  EXPECT_EQ(opt->steps_taken(), 1);
  nn::Linear net2 = make_linear(2);
  auto shared = std::make_shared<FusedAdam>(net2->parameters(), FusedAdamOptions(0.1));
  auto [model2, opt2] = amp::initialize(net2, shared, "O2", quiet());
  static_assert(std::is_same_v<decltype(opt2), std::shared_ptr<FusedAdam>>);
}

TEST(Handle, FollowsASchedulerBuiltOnTheOriginal) {
  nn::Linear net = make_linear(1);
  FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1));
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  scheduler.step();  // the first call only counts, the second changes the rate
  scheduler.step();
  EXPECT_EQ(opt.param_groups()[0].options().get_lr(), 0.05);
}

// Options changed on the original are carried over. The step count is not an option and stays.
TEST(Handle, KeepsItsCountWhenOptionsOfTheOriginalChange) {
  nn::Linear net = make_linear(1);
  FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1));
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  amp::scale_loss(model->forward(values({3, 5}, 2)).square().mean(), opt).backward();
  opt.step();
  static_cast<FusedAdamOptions&>(optimizer.param_groups()[0].options()).weight_decay(0.25);
  amp::scale_loss(model->forward(values({3, 5}, 3)).square().mean(), opt).backward();
  EXPECT_EQ(static_cast<FusedAdamOptions&>(opt.param_groups()[0].options()).weight_decay(), 0.25);
  opt.step();
  EXPECT_EQ(opt.steps_taken(), 2);
}

// The memory of master gradients is used again, unless somebody still looks at it.
TEST(MasterGradients, HeldByTheProgramAreNotOverwritten) {
  nn::Linear net = make_linear(1);
  FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1));
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  amp::scale_loss(model->forward(values({3, 5}, 2)).square().mean(), opt).backward();
  const at::Tensor kept = amp::master_params(opt)[0].grad();
  const at::Tensor view = amp::master_params(opt)[1].grad().view({2, 2});
  const at::Tensor kept_values = kept.clone(), view_values = view.clone();
  opt.step();
  amp::scale_loss(model->forward(values({3, 5}, 3)).square().mean(), opt).backward();
  EXPECT_TRUE(same_bytes(kept, kept_values));
  EXPECT_TRUE(same_bytes(view, view_values));
}

class MyAdam : public FusedAdam {
 public:
  using FusedAdam::FusedAdam;
};

// A handle made from a pointer would cut off what a derived class adds.
TEST(Handle, OfABasePointerToADerivedClassIsAnError) {
  nn::Linear net = make_linear(1);
  std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<MyAdam>(net->parameters());
  EXPECT_THROW((void)amp::initialize(net, optimizer, "O2", quiet()), c10::TypeError);
  MyAdam by_type(net->parameters());
}

// State from before initialize is kept in the masters' dtype (MW-02, MW-07).
TEST(StateFromBefore, MovesToTheMasters) {
  nn::Linear net = make_linear(1);
  FusedSGD optimizer(net->parameters(), FusedSGDOptions(0.1).momentum(0.9));
  net->forward(values({3, 5}, 2)).square().mean().backward();
  optimizer.step();
  const at::Tensor momentum =
      static_cast<FusedSGDParamState&>(*optimizer.state().at(net->weight.unsafeGetTensorImpl())).momentum_buffer.clone();
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  opt.zero_grad();
  const at::Tensor master = opt.param_groups()[0].params()[0];
  const auto& state = static_cast<FusedSGDParamState&>(*opt.state().at(master.unsafeGetTensorImpl()));
  EXPECT_TRUE(same_bytes(state.momentum_buffer, momentum));
}

// APG-02, APG-03: a group added after the first step gets masters and takes part in the fused order.
TEST(AddParamGroup, WorksWithFusedUnscale) {
  torch::manual_seed(1);  // of a hundred initial weights, one overflows at the first loss scale, and its step is skipped
  nn::Linear first = make_linear(1), second(4, 2);
  FusedSGD optimizer(first->parameters(), FusedSGDOptions(0.1).materialize_master_grads(false));
  auto [models, opt] = amp::initialize(std::tie(first, second), optimizer, "O2", quiet());
  auto& [model, head] = models;
  const auto train = [&, &model = model, &head = head, &opt = opt](int64_t seed) {
    amp::scale_loss(head->forward(model->forward(values({3, 5}, seed))).square().mean(), opt).backward();
    opt.step();
    opt.zero_grad();
  };
  train(1);
  opt.add_param_group(torch::optim::OptimizerParamGroup(second->parameters()));
  const at::Tensor before = second->weight.detach().clone();
  train(2);
  EXPECT_FALSE(same_bytes(before, second->weight));
  EXPECT_TRUE(same_bytes(second->weight, opt.param_groups()[1].params()[0].to(at::kHalf)));
}

// BWD-30, BWD-31: passes of losses with different scales are brought to the smaller one, and a parameter without a new gradient
// too.
TEST(SeveralLosses, AtDifferentScalesAccumulateWithFusedUnscale) {
  nn::Linear shared = make_linear(1), only_first = make_linear(7);
  std::vector<at::Tensor> params = shared->parameters();
  for (const auto& param : only_first->parameters()) params.push_back(param);
  FusedSGD optimizer(params, FusedSGDOptions(0.1).materialize_master_grads(false));
  auto [models, opt] = amp::initialize(std::tie(shared, only_first), optimizer, "O2", quiet().num_losses(2));
  amp::loss_scaler(1).restore(256.0, 0);
  auto& [a, b] = models;
  const at::Tensor x = values({3, 5}, 3);
  const at::Tensor weight = at::ones({4}).div(8);
  amp::scale_loss(((a->forward(x) + b->forward(x)) * weight).sum(), opt, 0).backward();
  amp::scale_loss((a->forward(x) * weight).sum(), opt, 1).backward();
  const auto masters = amp::master_params(opt);
  const at::Tensor once = x.to(at::kHalf).to(at::kFloat).sum(0).div(8).expand({4, 5});
  // One or two gradients of a sum of three products in float16.
  EXPECT_LE((masters[0].grad() - 2 * once).abs().max().item<double>(), 4 * 0x1p-10);
  EXPECT_LE((masters[2].grad() - once).abs().max().item<double>(), 4 * 0x1p-10);
}

TEST(SeveralPasses, WithDelayedUnscaleAccumulateWithFusedUnscale) {
  nn::Linear net = make_linear(1);
  FusedSGD optimizer(net->parameters(), FusedSGDOptions(0.1).materialize_master_grads(false));
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  const at::Tensor x = values({3, 5}, 3);
  const at::Tensor weight = at::ones({4}).div(8);
  amp::scale_loss((model->forward(x) * weight).sum(), opt, amp::ScaleLossOptions().delay_unscale(true)).backward();
  amp::scale_loss((model->forward(x) * weight).sum(), opt).backward();
  const at::Tensor twice = x.to(at::kHalf).to(at::kFloat).sum(0).div(4).expand({4, 5});
  EXPECT_LE((amp::master_params(opt)[0].grad() - twice).abs().max().item<double>(), 4 * 0x1p-10);
}

// FOPT-10 concerns masters; without them gradients are unscaled in place at the end of the block for every value of the option.
TEST(WithoutMasters, TheOptionChangesNothing) {
  for (const std::string level : {"O0", "O1", "O3"}) {
    std::vector<at::Tensor> results[2];
    for (const bool materialize : {true, false}) {
      nn::Linear net = make_linear(1);
      FusedSGD optimizer(net->parameters(), FusedSGDOptions(0.1).momentum(0.9).materialize_master_grads(materialize));
      auto [model, opt] = amp::initialize(net, optimizer, level, quiet().loss_scale("dynamic"));
      for (int step = 0; step < 2; ++step) {
        opt.zero_grad();
        amp::scale_loss(model->forward(values({3, 5}, step)).square().mean() * 0.001, opt).backward();
        opt.step();
      }
      results[materialize] = net->parameters();
    }
    EXPECT_TRUE(same_bytes(results[0], results[1])) << level;
  }
}

// Three steps. Only the first has a gradient of `idle`.
template <class Opt, class Backward>
std::vector<at::Tensor> train_with_idle_layer(const nn::Linear& used, const nn::Linear& idle, Opt& opt,
                                              const Backward& backward) {
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    const at::Tensor loss = used->weight.sum();
    backward(step == 0 ? loss + idle->weight.sum() : loss);
    opt.step();
  }
  return copies_of({used->weight, idle->weight});
}

// FOPT-01: momentum and weight decay go on with a gradient that zero_grad has zeroed, and stop with one that it has dropped.
template <class Opt, class Options>
void expect_zero_grad_of_the_class(const Options& options) {
  nn::Linear bare_used = make_linear(1), bare_idle = make_linear(7);
  Opt bare(std::vector<at::Tensor>{bare_used->weight, bare_idle->weight}, options);
  const auto expected = train_with_idle_layer(bare_used, bare_idle, bare, [](const at::Tensor& loss) { loss.backward(); });
  for (const std::string level : {"O0", "O1", "O4"}) {
    nn::Linear used = make_linear(1), idle = make_linear(7);
    Opt optimizer(std::vector<at::Tensor>{used->weight, idle->weight}, options);
    auto [models, opt] = amp::initialize(std::tie(used, idle), optimizer, level, quiet());
    const auto backward = [&opt = opt](const at::Tensor& loss) { amp::scale_loss(loss, opt).backward(); };
    EXPECT_TRUE(same_bytes(train_with_idle_layer(used, idle, opt, backward), expected)) << level;
    EXPECT_EQ(idle->weight.grad().defined(), bare_idle->weight.grad().defined()) << level;
    opt.zero_grad(/*set_to_none=*/true);
    EXPECT_FALSE(used->weight.grad().defined()) << level;
  }
}

TEST(WithoutMasters, ZeroGradDoesWhatTheClassDoes) {
  for (const bool drops : {false, true}) {
    expect_zero_grad_of_the_class<FusedSGD>(FusedSGDOptions(0.1).momentum(0.9).weight_decay(0.1).set_grad_none(drops));
    expect_zero_grad_of_the_class<FusedLARS>(FusedLARSOptions(0.1).momentum(0.9).weight_decay(0.1).set_grad_none(drops));
  }
}

TEST(WithMasters, Opt06ZeroGradDropsGradientsWhateverTheClassDoes) {
  nn::Linear net = make_linear(1);
  FusedSGD optimizer(net->parameters(), FusedSGDOptions(0.1).set_grad_none(false));
  auto [model, opt] = amp::initialize(net, optimizer, "O2", quiet());
  amp::scale_loss(model->forward(values({3, 5}, 2)).square().mean(), opt).backward();
  opt.zero_grad();
  EXPECT_FALSE(net->weight.grad().defined());
}

}  // namespace
}  // namespace test
