// GradScaler call by call: its results and errors. After the tests of PyTorch's torch.amp.GradScaler.
#include "tests/needs_gpus.h"
#include "tests/torch_amp/grad_scaler_support.h"

#include <apex_cpp/amp/grad_scaler/unscale_grads.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <map>

namespace apex::test {
namespace {

using amp::GradScaler;
using torch::Tensor;

struct GradScalerOn : OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, GradScalerOn, kDevices);

// ---- upstream: test_grad_scaling_unscale

TEST_P(GradScalerOn, GradScalingUnscaleMultipliesAndFindsInfAndNanInAnyMember) {
  const auto inv_scale = torch::full({}, 0.25, options());
  const auto big = torch::full({10, 10}, 4.0, options());
  for (const float bad : {0.0f, INFINITY, -INFINITY, NAN}) {
    for (int member = 0; member < 3; ++member) {
      // Contiguous, transposed and strided.
      std::vector<Tensor> grads{big.clone(), big.clone().t(), big.repeat({1, 2}).slice(1, 0, 20, 2)};
      if (bad != 0.0f) grads[member].index_put_({7, 3}, bad);
      auto optimizer = sgd({param_with_grad(grads[0]), param_with_grad(grads[1]), param_with_grad(grads[2])});
      const auto found = amp::detail::unscale_grads(optimizer, inv_scale);
      ASSERT_EQ(found.size(), 1u);
      EXPECT_EQ(item(found[0]), bad != 0.0f) << bad << " in member " << member;
      for (const auto& grad : grads) EXPECT_EQ(item(grad[0][0]), 1.0f) << "the optimizer's own gradient, in place";
    }
  }
}

TEST_P(GradScalerOn, GradScalingUnscaleAcceptsMixedFloatingDtypes) {
  std::vector<Tensor> params;
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    params.push_back(param_with_grad(torch::full({5}, 4.0, options(dtype))));
  }
  auto optimizer = sgd(params);
  const auto inv_scale = torch::full({}, 0.25, options());
  const auto found = amp::detail::unscale_grads(optimizer, inv_scale);
  for (const auto& param : params) EXPECT_TRUE(param.grad().eq(1.0).all().item<bool>()) << param.dtype();
  ASSERT_EQ(found.size(), 1u) << "one for a device, whatever the dtypes";
  EXPECT_EQ(item(found[0]), 0.0f);
}

TEST(GradScalerOnTwoDevices, GradScalingDeviceAsKeyKeepsOneFlagPerDevice) {
  APEX_CPP_NEEDS_GPUS(1);
  auto on_cpu = param_with_grad(torch::full({3}, 4.0)), on_gpu = param_with_grad(torch::full({3}, INFINITY, torch::kCUDA));
  auto also_on_gpu = param_with_grad(torch::full({3}, 4.0, torch::Device("cuda:0")));
  auto optimizer = sgd({on_cpu, on_gpu, also_on_gpu});
  const auto found = amp::detail::unscale_grads(optimizer, torch::full({}, 0.25));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(item(found[0]), 0.0f);
  EXPECT_EQ(item(found[1]), 1.0f);
  EXPECT_EQ(item(on_cpu.grad()[0]), 1.0f);
  EXPECT_EQ(item(also_on_gpu.grad()[0]), 1.0f);
}

// ---- upstream: test_grad_scaling_unscale_sparse

Tensor sparse_grad(std::vector<int64_t> rows, std::vector<float> values, torch::TensorOptions options) {
  const auto indices = torch::tensor(rows, options.dtype(torch::kLong)).unsqueeze(0);
  return torch::sparse_coo_tensor(indices, torch::tensor(values, options.dtype(torch::kFloat)).to(options.dtype()), {4});
}

TEST_P(GradScalerOn, GradScalingUnscaleSparseFindsInfAndNanAmongTheValues) {
  for (const float value : {16.0f, INFINITY, NAN}) {
    auto param = param_with_grad(sparse_grad({0, 1}, {16, value}, options()));
    auto optimizer = sgd({param});
    GradScaler scaler(scaler_options().init_scale(4.0));
    start(scaler, device());
    scaler.unscale_(optimizer);
    const auto grad = param.grad().to_dense();
    EXPECT_EQ(item(grad[0]), 4.0f);
    if (value == 16.0f) {
      EXPECT_EQ(item(grad[1]), 4.0f);
    }
    EXPECT_EQ(scaler.step(optimizer).has_value(), value == 16.0f);
  }
}

TEST_P(GradScalerOn, GradScalingCheckSparseTakesFloat16SumsOverEqualIndices) {
  // Each value is finite in float16, their sum is not.
  auto param = param_with_grad(sparse_grad({1, 1, 2}, {64000, 64000, 4}, options(torch::kHalf)));
  auto optimizer = sgd({param});
  const auto found = amp::detail::check_grads(optimizer);
  EXPECT_EQ(item(found.at(0)), 1.0f);
  EXPECT_EQ(item(param.grad().to_dense()[2]), 4.0f) << "read, not written";
}

// ---- upstream: test_grad_scaling_update_scale

TEST_P(GradScalerOn, GradScalingUpdateScaleGrowsAfterTheIntervalAndBacksOffAtOnce) {
  GradScaler scaler(scaler_options().init_scale(4.0).growth_factor(2.0).backoff_factor(0.25).growth_interval(2));
  start(scaler, device());
  auto param = param_with_grad(torch::zeros({1}, options()));
  auto optimizer = sgd({param});
  struct Update {
    float grad;
    double scale;
    int64_t tracker;
  };
  for (const auto& [grad, scale, tracker] :
       {Update{1, 4, 1}, Update{1, 8, 0}, Update{INFINITY, 2, 0}, Update{1, 2, 1}, Update{NAN, 0.5, 0}}) {
    param.mutable_grad().fill_(grad);
    EXPECT_EQ(scaler.step(optimizer).has_value(), std::isfinite(grad));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale);
    EXPECT_EQ(scaler.get_growth_tracker(), tracker);
  }
}

TEST(GradScaler, UpdateWithANewScaleTakesANumberOrATensor) {
  GradScaler scaler(cpu());
  start(scaler);
  scaler.update(8.0);
  EXPECT_EQ(scaler.get_scale(), 8.0);
  auto new_scale = torch::full({1}, 32.0);
  scaler.update(new_scale);
  new_scale.fill_(1.0);
  EXPECT_EQ(scaler.get_scale(), 32.0) << "a copy: what becomes of the tensor later does not matter";
  for (const auto& bad : {torch::ones({2}), torch::ones({1}).requires_grad_(), Tensor()}) {
    EXPECT_TRUE(contains(message_of([&] { scaler.update(bad); }), "a tensor of 1 element on cpu"));
  }
  for (const double bad : {0.0, -1.0, double{NAN}, 1e39}) EXPECT_THROW(scaler.update(bad), c10::ValueError);
  EXPECT_EQ(scaler.get_scale(), 32.0);
}

// ---- upstream: test_grad_scaling_scale, containers

TEST(GradScaler, GradScalingScaleKeepsTheContainer) {
  GradScaler scaler(cpu().init_scale(2.0));
  const auto t1 = torch::full({1}, 4.0);
  EXPECT_EQ(item(scaler.scale(t1)), 8.0f);
  const std::vector<Tensor> list = scaler.scale(std::vector<Tensor>{t1, t1 * 2});
  EXPECT_EQ(item(list[1]), 16.0f);
  const auto [a, b] = scaler.scale(std::make_tuple(t1, std::vector<Tensor>{t1, t1}));
  EXPECT_EQ(item(a) + item(b.at(1)), 16.0f);
  const std::map<std::string, std::pair<Tensor, std::optional<Tensor>>> map{{"x", {t1, std::nullopt}}, {"y", {t1, t1}}};
  const auto scaled = scaler.scale(map);
  EXPECT_FALSE(scaled.at("x").second);
  EXPECT_EQ(item(*scaled.at("y").second), 8.0f);
  EXPECT_EQ(item(scaler.scale(std::array<Tensor, 1>{t1})[0]), 8.0f);
  EXPECT_EQ(item(scaler.scale({t1, t1}).at(1)), 8.0f) << "a braced list";
  EXPECT_EQ(item(t1), 4.0f) << "the outputs themselves stay";
}

TEST(GradScaler, ScaleIsDifferentiableAndRefusesUndefinedTensors) {
  GradScaler scaler(cpu().init_scale(2.0));
  auto x = torch::ones({}, torch::requires_grad());
  scaler.scale(x * 3).backward();
  EXPECT_EQ(item(x.grad()), 6.0f);
  EXPECT_THROW(scaler.scale(std::vector<Tensor>{x, Tensor()}), c10::ValueError);
}

TEST_P(GradScalerOn, TheScaleIsMadeOnTheDeviceOfTheFirstOutput) {
  GradScaler scaler(scaler_options().init_scale(2.0));
  EXPECT_EQ(scaler.get_scale(), 2.0) << "before there is one";
  const auto scaled = scaler.scale(torch::full({2}, 4.0, options(torch::kHalf)));
  EXPECT_EQ(scaled.device().type(), device().type());
  EXPECT_EQ(scaled.dtype(), torch::kHalf);
  EXPECT_EQ(scaler.scale(torch::ones({}, options(torch::kHalf))).dtype(), torch::kFloat) << "a float16 loss cannot overflow";
}

TEST(GradScaler, RefusesAGradientThatRepeatsElementsAndChangesNothing) {
  const auto first = param_with_grad(torch::full({4}, 8.0)), second = param_with_grad(torch::ones({4}));
  second.mutable_grad() = torch::ones({1}).expand({4});
  auto optimizer = sgd({first, second});
  GradScaler scaler(cpu().init_scale(8.0));
  start(scaler);
  EXPECT_TRUE(contains(message_of([&] { scaler.unscale_(optimizer); }), "parameter 1 of group 0"));
  EXPECT_TRUE(first.grad().equal(torch::full({4}, 8.0)));
  second.mutable_grad() = second.grad().clone();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(first.grad().equal(torch::ones({4})));
  EXPECT_TRUE(second.grad().equal(torch::full({4}, 0.125)));
}

// ---- the order of calls

struct GradScalerCalls : ::testing::Test {
  void backward() { scaler.scale(param.sum()).backward(); }
  Tensor param = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer = sgd({param});
  GradScaler scaler{cpu()};
};

TEST_F(GradScalerCalls, EverythingNeedsAScaleFirst) {
  for (const auto& [name, call] : std::map<std::string, std::function<void()>>{
           {"unscale_", [&] { scaler.unscale_(optimizer); }}, {"step", [&] { scaler.step(optimizer); }}, {"update", [&] {
                                                                                                            scaler.update();
                                                                                                          }}}) {
    EXPECT_TRUE(contains(message_of(call), "Attempted " + name + " but there is no scale yet. Call scaler.scale("));
  }
}

TEST_F(GradScalerCalls, ANewScaleNeedsAScaleFirst) {
  const std::string error = "Attempted update but there is no scale yet";
  EXPECT_TRUE(contains(message_of([&] { scaler.update(8.0); }), error));
  EXPECT_TRUE(contains(message_of([&] { scaler.update(torch::full({1}, 8.0)); }), error));
}

TEST_F(GradScalerCalls, UpdateWithTheScaleKeepsTheGrowthCounter) {
  backward();
  scaler.step(optimizer);
  scaler.update();
  ASSERT_EQ(scaler.get_growth_tracker(), 1);
  optimizer.zero_grad();
  backward();
  scaler.unscale_(optimizer);
  scaler.update(scaler.get_scale());
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
}

TEST_F(GradScalerCalls, RefusesAGradientMadeInInferenceModeAndChangesNothing) {
  const auto second = param_with_grad(torch::ones({2}));
  auto both = sgd({param, second});
  backward();
  {
    const c10::InferenceMode on;
    second.mutable_grad() = torch::full({2}, 65536.0);
  }
  EXPECT_THROW(scaler.unscale_(both), c10::ValueError);
  EXPECT_EQ(item(param.grad()[0]), 65536.0f);
  second.mutable_grad() = second.grad().clone();
  scaler.unscale_(both);
  EXPECT_EQ(item(second.grad()[0]), 1.0f);
}

TEST_F(GradScalerCalls, UnscaleTwiceBetweenUpdatesIsAnError) {
  backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(
      contains(message_of([&] { scaler.unscale_(optimizer); }), "unscale_() has already been called on this optimizer"));
  EXPECT_EQ(item(param.grad()[0]), 1.0f) << "unscaled once";
  scaler.step(optimizer);
  scaler.update();
  optimizer.zero_grad();
  backward();
  EXPECT_NO_THROW(scaler.unscale_(optimizer)) << "update starts a new iteration";
}

TEST_F(GradScalerCalls, UnscaleAfterStepAndStepTwiceAreErrors) {
  backward();
  scaler.step(optimizer);
  EXPECT_TRUE(contains(message_of([&] { scaler.unscale_(optimizer); }), "unscale_() is being called after step()"));
  EXPECT_TRUE(contains(message_of([&] { scaler.step(optimizer); }), "step() has already been called since the last update()"));
  EXPECT_EQ(item(param[0]), 0.0f) << "stepped once";
}

TEST_F(GradScalerCalls, StepAndUpdateWithoutGradientsAreErrors) {
  start(scaler);
  EXPECT_TRUE(contains(message_of([&] { scaler.step(optimizer); }), "No inf checks were recorded for this optimizer"));
  EXPECT_TRUE(contains(message_of([&] { scaler.update(); }), "No inf checks were recorded prior to update"));
  backward();
  EXPECT_TRUE(scaler.step(optimizer)) << "the failed step left nothing behind";
}

TEST_F(GradScalerCalls, AStepThatThrowsLeavesTheGradientsUnscaledOnce) {
  struct Failing : torch::optim::SGD {
    using SGD::SGD;
    Tensor step(LossClosure closure = nullptr) override {
      TORCH_CHECK(!std::exchange(fails, false), "the step failed");
      return SGD::step(closure);
    }
    bool fails = true;
  } failing({param}, torch::optim::SGDOptions(1.0));
  backward();
  EXPECT_TRUE(contains(message_of([&] { scaler.step(failing); }), "the step failed"));
  scaler.step(failing);
  EXPECT_EQ(item(param[0]), 0.0f);
}

TEST_F(GradScalerCalls, AClosureIsAnErrorUnlessDisabled) {
  backward();
  const auto closure = [] { return torch::full({}, 5.0); };
  EXPECT_TRUE(contains(message_of([&] { scaler.step(optimizer, closure); }), "Closure use is not supported"));
  EXPECT_EQ(item(param[0]), 1.0f);
  GradScaler disabled(cpu().enabled(false));
  EXPECT_EQ(item(*disabled.step(optimizer, closure)), 5.0f);
}

TEST_F(GradScalerCalls, StepReturnsTheOptimizersResultOrNothingWhenSkipped) {
  struct Counting : torch::optim::SGD {
    using SGD::SGD;
    Tensor step(LossClosure = nullptr) override { return torch::full({}, 7.0); }
  } counting({param}, torch::optim::SGDOptions(1.0));
  backward();
  EXPECT_EQ(item(scaler.step(counting).value()), 7.0f);
  scaler.update();
  param.mutable_grad().fill_(NAN);
  EXPECT_FALSE(scaler.step(counting));
}

TEST_F(GradScalerCalls, ASkippedStepChangesNoBit) {
  torch::optim::Adam adam({param}, torch::optim::AdamOptions(0.1));
  backward();
  scaler.step(adam);
  scaler.update();
  const auto before = bytes_of(adam);
  param.mutable_grad()[1].fill_(INFINITY);
  EXPECT_FALSE(scaler.step(adam));
  EXPECT_EQ(bytes_of(adam), before);
}

TEST_F(GradScalerCalls, Float16GradientsAreAnErrorWithTheRemedyAndChangeNothing) {
  auto half = param_with_grad(torch::full({3, 2}, 4.0, torch::kHalf));
  auto both = sgd({param, half});
  backward();
  const auto message = message_of([&] { scaler.step(both); });
  EXPECT_TRUE(contains(message, "Attempting to unscale FP16 gradients"));
  EXPECT_TRUE(contains(message, "parameter 1 of group 0, of shape [3, 2]"));
  EXPECT_TRUE(contains(message, "amp::initialize(model, optimizer, \"O2\")"));
  EXPECT_TRUE(contains(message, "amp::scale_loss in place of GradScaler"));
  EXPECT_THROW(scaler.unscale_(both), c10::ValueError);
  EXPECT_EQ(item(param.grad()[0]), 65536.0f);
}

TEST_F(GradScalerCalls, AMovedOptimizerKeepsItsIdentity) {
  backward();
  scaler.unscale_(optimizer);
  torch::optim::SGD moved = std::move(optimizer);
  EXPECT_TRUE(contains(message_of([&] { scaler.unscale_(moved); }), "already been called on this optimizer"));
  scaler.step(moved);
  EXPECT_EQ(item(param[0]), 0.0f) << "its gradients were not unscaled twice";
  torch::optim::SGD again = std::move(moved);
  EXPECT_TRUE(contains(message_of([&] { scaler.step(again); }), "step() has already been called"));
  EXPECT_TRUE(contains(message_of([&] { scaler.step(optimizer); }), "if it was moved"));
}

// The original's stand-ins have gradients, and would be stepped in place of the model.
TEST_F(GradScalerCalls, AnOptimizerThatInitializeReplacedIsAnError) {
  Mlp model;
  auto original = sgd(model->parameters());
  auto [net, opt] = amp::initialize(model, original, "O0", quiet());
  scaler.scale(net->forward(features()).sum()).backward();
  const auto before = bytes_of(*model);
  expect_error([&] { scaler.unscale_(original); }, {"unscale_() was given the optimizer that was passed to amp::initialize"});
  expect_error([&] { scaler.step(original); }, {"step() or unscale_() was given", "Use the handle for step()"});
  EXPECT_TRUE(scaler.step(opt)) << "the errors left nothing behind";
  EXPECT_NE(bytes_of(*model), before);
  amp::reset();
}

TEST_F(GradScalerCalls, AHandleWithMastersIsAnErrorWithTheRemedy) {
  Mlp model;
  auto original = sgd(model->parameters());
  auto [net, opt] = amp::initialize(model, original, "O2", quiet());
  start(scaler);
  expect_error([&, &opt = opt] { scaler.step(opt); }, {"No inf checks were recorded", "amp::scale_loss alone"});
  amp::reset();
}

TEST_F(GradScalerCalls, AMovedScalerContinues) {
  backward();
  scaler.unscale_(optimizer);
  GradScaler moved = std::move(scaler);
  moved.step(optimizer);
  moved.update();
  EXPECT_EQ(moved.get_growth_tracker(), 1);
}

TEST_F(GradScalerCalls, DisabledItOnlySteps) {
  GradScaler disabled(cpu().enabled(false));
  const std::vector<Tensor> outputs{param};
  EXPECT_TRUE(disabled.scale(outputs)[0].is_same(param));
  param.mutable_grad() = torch::full({2}, INFINITY);
  disabled.unscale_(optimizer);
  disabled.unscale_(optimizer);
  EXPECT_TRUE(disabled.step(optimizer));
  disabled.update();
  disabled.update(3.0);
  EXPECT_TRUE(std::isinf(item(param[0])));
  EXPECT_EQ(disabled.get_scale(), 1.0);
  EXPECT_EQ(disabled.get_growth_tracker(), 0);
  EXPECT_TRUE(disabled.state_dict().is_empty());
  EXPECT_NO_THROW(disabled.load_state_dict(GradScaler::StateDict()));
}

}  // namespace
}  // namespace apex::test
