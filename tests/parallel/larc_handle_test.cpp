// LARC-01, CHK-01: LARC behaves like the optimizer that it wraps, with and without amp (upstream:
// tests/L0/run_amp/test_larc.py).
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

namespace apex::test {
namespace {

using parallel::LARC;
using torch::optim::SGD;
using torch::optim::SGDOptions;

amp::InitializeOptions quiet() { return amp::InitializeOptions().verbosity(0); }
SGDOptions options() { return SGDOptions(0.25).momentum(0.9).weight_decay(0.01); }

torch::nn::Linear network() {
  torch::manual_seed(5);
  return torch::nn::Linear(6, 3);
}
torch::Tensor input() { return torch::linspace(-1, 1, 24).reshape({4, 6}); }

template <class Net, class Opt>
double train_step(Net& net, Opt& opt, double factor = 1) {
  opt.zero_grad();
  const auto loss = torch::mse_loss(net->forward(input()), torch::ones({4, 3})) * factor;
  {
    auto scaled_loss = amp::scale_loss(loss, opt);
    scaled_loss.backward();
  }
  opt.step();
  return loss.template item<double>();
}

std::vector<torch::Tensor> copies(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& param : module.parameters()) values.push_back(param.detach().to(torch::kFloat).clone());
  return values;
}

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance)) << i;
}

class LarcLevels : public ::testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { amp::reset(); }
};

// Training with master weights must match FP32 training without amp, within the error of 16 bits. Five steps with momentum add
// up to 13 steps of a tenth of a tensor's norm, which is about 1, along gradients that are off by some five roundings to BF16
// of 2^-8: 13 * 0.1 * 5 * 2^-8 = 0.025. A weight below 1 is rounded by 2^-9 in addition.
TEST_P(LarcLevels, TestLarcMixedPrecisionTrainsAsInFp32) {
  auto plain = network();
  SGD plain_sgd(plain->parameters(), options());
  LARC plain_larc(plain_sgd, 0.1);
  auto net = network();
  SGD sgd(net->parameters(), options());
  LARC larc(sgd, 0.1);
  auto [model, opt] = amp::initialize(net, larc, GetParam(), quiet());
  double first = 0, last = 0;
  for (int i = 0; i < 5; ++i) {
    plain_larc.zero_grad();
    torch::mse_loss(plain->forward(input()), torch::ones({4, 3})).backward();
    plain_larc.step();
    last = train_step(model, opt);
    if (i == 0) first = last;
  }
  EXPECT_LT(last, first);
  expect_close(copies(*net), copies(*plain), 3e-2);
}

TEST_P(LarcLevels, AnOverflowSkipsTheWholeStep) {
  auto net = network();
  SGD sgd(net->parameters(), options());
  LARC larc(sgd);
  auto [model, opt] = amp::initialize(net, larc, GetParam(), quiet().loss_scale("dynamic"));
  train_step(model, opt);
  const auto before = copies(*net);
  train_step(model, opt, INFINITY);
  EXPECT_TRUE(amp::step_result(opt).skipped);
  expect_close(copies(*net), before, 0);
}

TEST_P(LarcLevels, APointerIsAccepted) {
  auto net = network();
  SGD sgd(net->parameters(), options());
  std::unique_ptr<torch::optim::Optimizer> larc = std::make_unique<LARC<SGD>>(sgd);
  auto [model, opt] = amp::initialize(net, larc, GetParam(), quiet());
  EXPECT_NE(dynamic_cast<LARC<SGD>*>(opt.get()), nullptr);
  const auto before = copies(*net);
  amp::scale_loss(torch::mse_loss(model->forward(input()), torch::ones({4, 3})), opt).backward();
  opt->step();
  EXPECT_FALSE(torch::equal(copies(*net)[0], before[0]));
}

INSTANTIATE_TEST_SUITE_P(Levels, LarcLevels, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return std::string(test.param); });

class LarcHandle : public LarcLevels {};

// OPT-04: around a fused optimizer, masters have gradients for every value of materialize_master_grads. FP32 formulas that
// round in another order may change the rounding of an FP16 weight: below 1, FP16 numbers are 2^-11 = 5e-4 apart.
TEST_F(LarcHandle, Opt04AFusedOptimizerInsideLarcStepsTheMasters) {
  const auto run = [](auto make) {
    auto net = network();
    auto optimizer = make(net->parameters());
    LARC larc(optimizer, 0.1);
    auto [model, opt] = amp::initialize(net, larc, "O2", quiet());
    for (int i = 0; i < 3; ++i) train_step(model, opt);
    amp::reset();
    return copies(*net);
  };
  const auto with_sgd = run([](std::vector<torch::Tensor> params) { return SGD(std::move(params), options()); });
  for (const bool materialize : {true, false}) {
    const auto fused = run([&](std::vector<torch::Tensor> params) {
      return optimizers::FusedSGD(
          std::move(params),
          optimizers::FusedSGDOptions(0.25).momentum(0.9).weight_decay(0.01).materialize_master_grads(materialize));
    });
    expect_close(fused, with_sgd, 1e-3);
  }
}

template <class Opt>
class LarcAround : public ::testing::Test {
 protected:
  void TearDown() override { amp::reset(); }
};
using Optimizers = ::testing::Types<SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::RMSprop, torch::optim::Adagrad,
                                    optimizers::FusedAdam, optimizers::FusedLAMB, optimizers::FusedNovoGrad,
                                    optimizers::FusedAdagrad, optimizers::FusedLion>;
TYPED_TEST_SUITE(LarcAround, Optimizers);

TYPED_TEST(LarcAround, TrainsAtO2) {
  auto net = network();
  auto optimizer = [&] {
    if constexpr (std::is_same_v<TypeParam, SGD>) {
      return SGD(net->parameters(), options());
    } else {
      return TypeParam(net->parameters());
    }
  }();
  LARC larc(optimizer);
  auto [model, opt] = amp::initialize(net, larc, "O2", quiet());
  const double first = train_step(model, opt);
  double last = first;
  for (int i = 0; i < 5; ++i) last = train_step(model, opt);
  EXPECT_LT(last, first);
}

TEST_F(LarcHandle, ASchedulerBuiltAtAnyTimeTakesEffect) {
  auto net = network();
  SGD sgd(net->parameters(), options());
  // LibTorch's schedulers change nothing in their first step.
  torch::optim::StepLR on_original(sgd, 1, 0.5);
  on_original.step();
  LARC larc(sgd);
  torch::optim::StepLR on_larc(larc, 1, 0.5);
  on_larc.step();
  on_original.step();
  EXPECT_EQ(larc.param_groups()[0].options().get_lr(), 0.125);
  auto [model, opt] = amp::initialize(net, larc, "O2", quiet());
  torch::optim::StepLR on_handle(opt, 1, 0.5);
  on_handle.step();
  on_original.step();
  EXPECT_EQ(opt.param_groups()[0].options().get_lr(), 0.0625);
  on_larc.step();
  EXPECT_EQ(opt.param_groups()[0].options().get_lr(), 0.03125);
  on_handle.step();
  EXPECT_EQ(opt.param_groups()[0].options().get_lr(), 0.015625);
  train_step(model, opt);
}

TEST_F(LarcHandle, UsingTheOriginalOptimizerIsAnError) {
  auto net = network();
  SGD sgd(net->parameters(), options());
  LARC larc(sgd);
  sgd.step();
  EXPECT_THROW(larc.step(), c10::Error);

  auto other = network();
  SGD other_sgd(other->parameters(), options());
  LARC other_larc(other_sgd);
  auto [model, opt] = amp::initialize(other, other_larc, "O2", quiet());
  EXPECT_THROW(other_larc.step(), c10::Error);
  EXPECT_THROW((void)amp::scale_loss(torch::ones({}), other_larc), c10::Error);
}

TEST_F(LarcHandle, Larc01GroupsCanBeAddedBeforeAndAfterInitialize) {
  auto net = network();
  auto first = torch::nn::Linear(6, 6), second = torch::nn::Linear(6, 6);
  torch::nn::Sequential all(first, second, net);
  SGD sgd(net->parameters(), options());
  LARC larc(sgd);
  larc.add_param_group(second->parameters());
  auto [model, opt] = amp::initialize(all, larc, "O2", quiet());
  opt.add_param_group(first->parameters());
  const auto before = copies(*all);
  train_step(model, opt);
  const auto after = copies(*all);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(torch::equal(before[i], after[i])) << i;
  EXPECT_EQ(opt.param_groups().size(), 3u);
}

TEST_F(LarcHandle, Larc01SavesAndLoadsLikeTheInnerOptimizer) {
  const auto start = [](torch::nn::Linear& net) {
    SGD sgd(net->parameters(), options());
    LARC larc(sgd);
    return amp::initialize(net, larc, "O2", quiet());
  };
  auto net = network();
  auto [model, opt] = start(net);
  for (int i = 0; i < 2; ++i) train_step(model, opt);
  std::stringstream model_file, opt_file;
  torch::save(model, model_file);
  torch::save(opt, opt_file);
  const auto state = amp::state_dict();
  for (int i = 0; i < 2; ++i) train_step(model, opt);

  auto again = torch::nn::Linear(6, 3);
  auto [model_again, opt_again] = start(again);
  torch::load(model_again, model_file);
  torch::load(opt_again, opt_file);
  amp::load_state_dict(state);
  for (int i = 0; i < 2; ++i) train_step(model_again, opt_again);
  expect_close(copies(*again), copies(*net), 0);
}

TEST_F(LarcHandle, CanBeMovedLikeAnyOptimizer) {
  auto net = network();
  const auto make = [&] {
    SGD sgd(net->parameters(), options());
    return LARC(sgd, 0.1, false);
  };
  LARC<SGD> larc = make();
  auto other = network();
  SGD other_sgd(other->parameters(), options());
  LARC assigned(other_sgd);
  assigned = std::move(larc);
  EXPECT_FALSE(assigned.larc_options().clip());
  EXPECT_TRUE(assigned.param_groups()[0].params()[0].is_same(net->weight));
  EXPECT_THROW(larc.step(), c10::Error);
}

}  // namespace
}  // namespace apex::test
