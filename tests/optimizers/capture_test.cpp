// Steps in a CUDA graph: a capture whose replays would repeat the same step is an error, before anything changes.
#include <apex_cpp/amp.h>

#include "kernels/capture.h"
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
namespace amp = apex::amp;

bool captured = false;

// While it lives, work on every device counts as captured. Needs no GPU, because steps are rejected before any work.
class Capture {
 public:
  Capture() { captured = true; }
  ~Capture() { captured = false; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
};

}  // namespace
}  // namespace test

// Replaces the library's function: the linker prefers the test program's.
bool apex::kernels::is_captured(c10::Device) { return ::test::captured; }

namespace test {
namespace {

// The error of a captured step; empty if there is none.
std::string refusal(torch::optim::Optimizer& optimizer) {
  const Capture capture;
  return message_of([&] { optimizer.step(); });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class CapturedStep : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, CapturedStep, ::testing::ValuesIn(optimizer_classes()), name_of_class);

TEST_P(CapturedStep, TheFirstStepIsAnError) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  const auto before = copies_of(params);
  const std::string message = refusal(*optimizer);
  EXPECT_TRUE(contains(message, "Parameter 0 of group 0")) << message;
  EXPECT_TRUE(contains(message, "Run one step before the capture")) << message;
  EXPECT_TRUE(same_bytes(params, before));
  EXPECT_TRUE(optimizer->state().empty());
  optimizer->step();
  EXPECT_FALSE(same_bytes(params, before));
}

TEST_P(CapturedStep, AParametersFirstGradientIsAnError) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  params[1].mutable_grad().reset();
  optimizer->step();
  set_grads(params, 3);
  EXPECT_TRUE(contains(refusal(*optimizer), "Parameter 1 of group 0"));
}

// The others are in the tests below.
TEST_P(CapturedStep, StepsCountedOnTheHostAreAnError) {
  const std::string& name = GetParam().name;
  const bool counts_on_host =
      name == "FusedAdam" || name == "FusedLAMB" || name == "FusedNovoGrad" || name == "FusedScheduleFreeAdamW";
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  optimizer->step();
  const auto before = copies_of(params);
  const std::string message = refusal(*optimizer);
  EXPECT_EQ(contains(message, "counted on the host"), counts_on_host) << message;
  EXPECT_EQ(contains(message, "FusedMixedPrecisionLamb"), counts_on_host) << message;
  EXPECT_EQ(same_bytes(params, before), counts_on_host);
}

TEST(CapturedCapturable, StepsAfterTheFirstWork) {
  const auto params = make_params(1);
  FusedAdam optimizer(params, FusedAdamOptions().capturable(true));
  set_grads(params, 2);
  optimizer.step();
  EXPECT_EQ(refusal(optimizer), "");
  EXPECT_EQ(optimizer.steps_taken(), 2);
}

template <class Opt>
void expect_new_rate_to_be_refused(Opt& optimizer, const std::vector<at::Tensor>& params) {
  set_grads(params, 2);
  optimizer.step();
  optimizer.param_groups()[0].options().set_lr(0.125);
  const std::string message = refusal(optimizer);
  EXPECT_TRUE(contains(message, "learning rate of group 0 became 0.125")) << message;
  EXPECT_TRUE(contains(message, "update_device_lr()")) << message;
  optimizer.update_device_lr();
  EXPECT_EQ(refusal(optimizer), "");
}

TEST(CapturedCapturable, RejectsALearningRateOutsideTheDevice) {
  const auto adam_params = make_params(1), lamb_params = make_params(1);
  FusedAdam adam(adam_params, FusedAdamOptions().capturable(true));
  expect_new_rate_to_be_refused(adam, adam_params);
  FusedMixedPrecisionLamb lamb(lamb_params);
  expect_new_rate_to_be_refused(lamb, lamb_params);
}

// Moments were loaded, the count is on the host yet.
TEST(CapturedCapturable, RejectsTheFirstStepAfterLoading) {
  const auto params = make_params(1);
  FusedAdam trained(params, FusedAdamOptions().capturable(true));
  set_grads(params, 2);
  trained.step();
  FusedAdam loaded(params, FusedAdamOptions().capturable(true));
  load(loaded, saved(trained));
  const std::string message = refusal(loaded);
  EXPECT_TRUE(contains(message, "step count of group 0")) << message;
  EXPECT_TRUE(contains(message, "Run one step before the capture")) << message;
  EXPECT_EQ(loaded.steps_taken(), 1);
}

// ---- under amp ----

torch::nn::Linear one_layer() {
  torch::nn::Linear net(4, 3);
  const at::NoGradGuard no_grad;
  net->weight.copy_(values({3, 4}, 1));
  net->bias.copy_(values({3}, 2));
  return net;
}

template <class Check>
void with_amp(const amp::InitializeOptions& options, const Check& check) {
  auto net = one_layer();
  FusedAdam original(net->parameters(), FusedAdamOptions().capturable(true));
  auto [model, optimizer] = amp::initialize(net, original, "O2", amp::InitializeOptions(options).verbosity(0));
  const auto pass = [&, &model = model, &optimizer = optimizer] {
    const at::Tensor loss = model(values({2, 4}, 3)).square().mean();
    auto scaled_loss = amp::scale_loss(loss, optimizer);
    scaled_loss.backward();
    scaled_loss.finish();
  };
  pass();
  optimizer.step();
  model->zero_grad();
  check(optimizer, pass);
}

TEST(CapturedAmp, RejectsADynamicLossScale) {
  with_amp(amp::InitializeOptions().loss_scale("dynamic"), [](auto& optimizer, const auto& pass) {
    std::string message;
    {
      const Capture capture;
      message = message_of(pass);
    }
    EXPECT_TRUE(contains(message, "amp::scale_loss")) << message;
    EXPECT_TRUE(contains(message, "fixed loss_scale")) << message;
    pass();
    EXPECT_TRUE(contains(refusal(optimizer), "step()"));
    optimizer.step();
    EXPECT_EQ(optimizer.steps_taken(), 2);
  });
}

// Each pass has scales of its own, which a graph would repeat.
TEST(CapturedAmp, RejectsDelayedFp8Scales) {
  torch::nn::Linear model(16, 16);
  FusedAdam adam(model->parameters(), FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(model, adam, "O6", amp::InitializeOptions().fp8("delayed").verbosity(0));
  const at::Tensor loss = net->forward(torch::ones({2, 16})).sum();
  const Capture capture;
  const std::string message = message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt); });
  EXPECT_TRUE(contains(message, "Use fp8 current")) << message;
  amp::reset();
}

TEST(CapturedAmp, AcceptsAFixedLossScale) {
  with_amp(amp::InitializeOptions().loss_scale(128.0), [](auto& optimizer, const auto& pass) {
    const Capture capture;
    pass();
    optimizer.step();
    EXPECT_EQ(optimizer.steps_taken(), 2);
  });
}

// Writes to the model's weights and not to the masters, which amp finds by comparing values after a step.
struct StepsAList : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& param : list) param.sub_(1);
    return {};
  }
  std::vector<at::Tensor> list;
};

// A capture has no values that the host could compare.
TEST(CapturedAmp, ChecksACustomClassInStepsOutsideOfTheCapture) {
  auto net = one_layer();
  StepsAList original(net->parameters(), 0.1);
  original.list = net->parameters();
  auto [model, optimizer] = amp::initialize(net, original, "O2", amp::InitializeOptions().loss_scale(128.0).verbosity(0));
  EXPECT_EQ(refusal(optimizer), "");
  const std::string message = message_of([&, &opt = optimizer] { opt.step(); });
  EXPECT_TRUE(contains(message, "wrote into the model's weight 'weight'")) << message;
  amp::reset();
}

}  // namespace
}  // namespace test
