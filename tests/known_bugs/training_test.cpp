// Defects of Apex within the training loop: scales, skipped steps, accumulation.
#include <apex_cpp/optimizers.h>

#include <limits>

#include "tests/amp/warnings.h"
#include "tests/known_bugs/known_bugs.h"

namespace apex::test {
namespace {

using torch::Tensor;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Weights `low` (16-bit at O2) and `native` (float32, as a batch norm's): the gradient of both is the input.
struct DotImpl : torch::nn::Module {
  DotImpl() {
    low = register_parameter("low", torch::ones({3}));
    native = register_parameter("native", torch::ones({3}));
  }
  Tensor forward(const Tensor& x) { return (low * x.to(low.dtype())).sum() + (native * x.to(native.dtype())).sum(); }
  Tensor low, native;
};
TORCH_MODULE(Dot);

Tensor x1() { return torch::tensor({1.0, -2.0, 0.5}); }
Tensor x2() { return torch::tensor({0.25, 4.0, -8.0}); }

template <class Opt, class Options>
auto at_o2(Dot& model, const Options& options, amp::InitializeOptions settings) {
  Opt optimizer(model->parameters(), options);
  auto handles = amp::initialize(model, optimizer, "O2", settings);
  model->native.set_data(torch::ones({3}));
  return handles;
}
auto sgd_at_o2(Dot& model, amp::InitializeOptions settings) {
  return at_o2<torch::optim::SGD>(model, torch::optim::SGDOptions(0.5), settings);
}

// The scale was halved until 1 / scale failed.
TEST_F(KnownBugs, Bug03AnEndlessOverflowEndsInAnErrorThatNamesTheMinimum) {
  Dot model;
  auto [net, opt] = sgd_at_o2(model, quiet());
  amp::loss_scaler().restore(std::ldexp(1.0, -120), 0);
  std::string error;
  for (int i = 0; i < 200 && error.empty(); ++i) {
    error = message_of([&, net = net, &opt = opt]() mutable {
      auto scaled = amp::scale_loss(net->forward(x1()) * kInf, opt);
      scaled.backward();
      scaled.finish();
    });
    EXPECT_GT(amp::loss_scaler().loss_scale(), 0.0);
  }
  EXPECT_TRUE(contains(error, "min_loss_scale"));
}

// grad = d(loss)/dx through a scaled loss, then a penalty on it: both backward passes must see unscaled values.
TEST_F(KnownBugs, Bug17AGradientPenaltyIsUnscaledWithTheScalersScale) {
  Mlp model, plain;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) model->parameters()[i].copy_(plain->parameters()[i]);
  }
  const Tensor x = features().requires_grad_(), y = features().requires_grad_();
  const auto penalty = [](const Tensor& grad) { return (grad.norm() - 1).square(); };
  const Tensor plain_grad = torch::autograd::grad({plain->forward(y).square().sum()}, {y}, {}, true, true)[0];
  penalty(plain_grad).backward();

  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", quiet().loss_scale("dynamic"));
  Tensor grad;
  {
    auto scaled = amp::scale_loss(net->forward(x).square().sum(), opt);
    grad = torch::autograd::grad({scaled.tensor()}, {x}, {}, true, true)[0] / amp::loss_scaler().loss_scale();
  }
  { amp::scale_loss(penalty(grad), opt).backward(); }
  for (size_t i = 0; i < 4; ++i) {
    const Tensor got = model->parameters()[i].grad(), want = plain->parameters()[i].grad();
    ASSERT_EQ(got.defined(), want.defined()) << i;
    EXPECT_TRUE(!got.defined() || torch::equal(got, want)) << i;  // scales are powers of 2
  }
  opt.step();
  EXPECT_FALSE(amp::step_result(opt).skipped);
}

// The lines of the page on programs, against a plain program in FP32.
TEST_F(KnownBugs, Bug17APenaltyOnWeightGradientsIsComputedBeforeTheBlock) {
  const auto with_penalty = [](Mlp& model, const auto& forward, double scale) {
    const Tensor loss = forward(features()).to(torch::kFloat).square().mean();
    Tensor penalty = torch::zeros({});
    for (const auto& grad : torch::autograd::grad({loss * scale}, model->parameters(), {}, true, /*create_graph=*/true)) {
      penalty = penalty + (grad.to(torch::kFloat) / scale).square().sum();
    }
    return loss + 0.1 * penalty;
  };
  Mlp plain;
  with_penalty(
      plain, [&](const Tensor& x) { return plain->forward(x); }, 1)
      .backward();
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5"}) {
    SetUp();
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic").max_loss_scale(1024.0));
    const Tensor loss = with_penalty(
        model, [&net = net](const Tensor& x) { return net->forward(x); }, 1024);
    { amp::scale_loss(loss, opt).backward(); }
    const auto params = amp::master_params(opt);
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor want = plain->parameters()[i].grad(), got = params[i].grad().to(torch::kFloat);
      // Off by the loss scale would be off by 1024. Operators round to 11 or 8 bits, a dozen times one after the other.
      // At O0 the scale, a power of two, changes no bit.
      const double rounding = level[1] == '0' ? 0 : level[1] < '4' ? 12 * 0x1p-11 : 12 * 0x1p-8;
      EXPECT_LE((got - want).norm().item<double>(), rounding * want.norm().item<double>()) << level << " " << i;
    }
  }
}

TEST_F(KnownBugs, Bug17ScaledGradientsWithAGraphCauseAWarning) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    for (const double scale : {1.0, 8.0}) {
      Mlp model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(scale));
      CaughtWarnings warnings;
      { amp::scale_loss(net->forward(features()).square().mean(), opt).backward({}, true, /*create_graph=*/true); }
      EXPECT_EQ(warnings.text.find("now 8, and a penalty made from them carries it, too") != std::string::npos, scale != 1)
          << level;
      model->zero_grad();
    }
  }
}

TEST_F(KnownBugs, Bug17TheScalerUnscalesOutOfPlaceAndRecordsOverflow) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  auto& scaler = amp::loss_scaler();
  scaler.clear_overflow_state();
  const std::vector<Tensor> grads{x1().to(torch::kHalf) * 64}, unscaled{torch::empty({3})};
  scaler.restore(64.0, 0);
  scaler.unscale(grads, unscaled);
  EXPECT_TRUE(torch::equal(unscaled[0], x1()));
  scaler.unscale({grads[0] * kInf}, unscaled);
  EXPECT_TRUE(scaler.update_scale()) << "overflow: the step is to be left out";
}

TEST_F(KnownBugs, Bug18AClosureIsAnErrorInNormalAndInSkippedSteps) {
  for (const bool overflow : {false, true}) {
    Dot model;
    auto [net, opt] = sgd_at_o2(model, quiet().loss_scale("dynamic"));
    amp::loss_scaler().restore(8.0, 0);
    { amp::scale_loss(net->forward(x1()) * (overflow ? kInf : 1.0f), opt).backward(); }
    const auto before = bytes_of(*model);
    const auto error = message_of([&opt = opt] { opt.step([] { return torch::zeros({}); }); });
    EXPECT_TRUE(contains(error, "closure"));
    EXPECT_EQ(bytes_of(*model), before);
    opt.step();
    EXPECT_EQ(amp::step_result(opt).skipped, overflow) << "the refused call used nothing up";
  }
}

// Apex replaced `step` for a while, which schedulers took for a step that never ran.
TEST_F(KnownBugs, Bug30ASchedulerCanWaitForSkippedSteps) {
  Dot model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale("dynamic"));
  amp::loss_scaler().restore(8.0, 0);
  std::vector<double> rates;
  for (const float factor : {1.0f, kInf, 1.0f}) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(x1() * factor), opt).backward(); }
    opt.step();
    if (!amp::step_result(opt).skipped) scheduler.step();
    rates.push_back(opt.param_groups()[0].options().get_lr());
  }
  // LibTorch's first scheduler step leaves the rate; the second one is that of the third iteration.
  EXPECT_EQ(rates, (std::vector<double>{0.5, 0.5, 0.25}));
}

TEST_F(KnownBugs, Bug31ABatchCanBeRepeatedUntilItsStepIsTaken) {
  Dot model;
  auto [net, opt] = sgd_at_o2(model, quiet().loss_scale("dynamic"));
  int passes = 0;
  do {
    opt.zero_grad();
    { amp::scale_loss(net->forward(x2()), opt).backward(); }
    opt.step();
    ++passes;
  } while (amp::step_result(opt).skipped && passes < 20);
  // 8 * scale fits float16 (65504) from a scale of 2^12 on: four halvings of 2^16.
  EXPECT_EQ(passes, 5);
  EXPECT_TRUE(torch::equal(model->native, 1 - 0.5 * x2()));
}

// Gradients of earlier passes carry another scale, or none: at the end of a block they are no part of it.
TEST_F(KnownBugs, Bug32GradientsOfAnEarlierScaleAreNeitherMixedNorCheckedAgain) {
  Dot model;
  auto [net, opt] = sgd_at_o2(model, quiet().loss_scale("dynamic"));
  amp::loss_scaler().restore(64.0, 0);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  amp::loss_scaler().restore(4.0, 0);
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() + x2()));
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x2()));
  // A stale infinity that nobody zeroed makes one skip, not one in every pass.
  { amp::scale_loss(net->forward(x1()) * kInf, opt).backward(); }
  opt.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  EXPECT_FALSE(amp::step_result(opt).skipped);
}

TEST_F(KnownBugs, Bug35Apg03AGroupAddedWithFusedUnscaleTrains) {
  Dot model;
  apex::optimizers::FusedSGD optimizer({model->native}, apex::optimizers::FusedSGDOptions(0.5).materialize_master_grads(false));
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  opt.add_param_group(torch::optim::OptimizerParamGroup({model->low}));
  opt.zero_grad();
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  EXPECT_TRUE(torch::equal(model->low.to(torch::kFloat), 1 - 0.5 * x1()));
}

// Of two passes at different scales, a parameter that only the first reached kept the first one's.
TEST_F(KnownBugs, Bug35Bwd31AParameterOnlyInTheFirstPassIsScaledConsistently) {
  Dot model;
  auto [net, opt] = at_o2<apex::optimizers::FusedSGD>(
      model, apex::optimizers::FusedSGDOptions(0.5).materialize_master_grads(false), quiet().num_losses(2));
  amp::loss_scaler(0).restore(64.0, 0);
  amp::loss_scaler(1).restore(4.0, 0);
  { amp::scale_loss(net->forward(x1()), opt, 0).backward(); }
  { amp::scale_loss((model->native * x2()).sum(), opt, 1).backward(); }
  opt.step();
  EXPECT_TRUE(torch::equal(model->low.to(torch::kFloat), 1 - 0.5 * x1()));
  EXPECT_TRUE(torch::equal(model->native, 1 - 0.5 * (x1() + x2())));
}

// Apex took a scale factor and used 2; here there is none to take, and both ways it is the documented constant.
TEST_F(KnownBugs, Bug35Scale02GrowthAndBackoffAreTheDocumentedFactor) {
  amp::LossScaler scaler(amp::LossScale("dynamic"));
  scaler.restore(8.0, 0);
  scaler.set_scale_window(1);
  EXPECT_FALSE(scaler.update_scale());
  EXPECT_EQ(scaler.loss_scale(), 8.0 * amp::LossScaler::kScaleFactor);
  scaler.clear_overflow_state();
  const std::vector<Tensor> grads{torch::full({1}, kInf)};
  scaler.unscale(grads, grads);
  EXPECT_TRUE(scaler.update_scale());
  EXPECT_EQ(scaler.loss_scale(), 8.0);
}

}  // namespace
}  // namespace apex::test
