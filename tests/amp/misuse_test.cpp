// Mistakes in use end in an error that names the thing and the remedy, before anything is changed.
#include "tests/amp/optimizers.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

class Misuse : public AmpTest {
 protected:
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), 0.1};

  /// `initialize` must fail with `part` in its message and leave model and optimizer as they were.
  template <class Call>
  void expect_rejected(const std::string& part, Call&& call) {
    const auto model_before = bytes_of(*model);
    EXPECT_TRUE(contains(message_of(call), part));
    EXPECT_EQ(bytes_of(*model), model_before);
    EXPECT_EQ(optimizer.parameters().size(), 4u);
  }
};

TEST_F(Misuse, Init05AnUnknownLevelIsAnErrorThatListsTheLevels) {
  expect_rejected("O2", [&] { (void)amp::initialize(model, optimizer, "02", quiet()); });
}

TEST_F(Misuse, AnOptimizerOverOtherParametersIsRejected) {
  Mlp other;
  torch::optim::SGD stranger(other->parameters(), 0.1);
  expect_rejected("none of which belongs to the models", [&] { (void)amp::initialize(model, stranger, "O2", quiet()); });
  EXPECT_EQ(stranger.parameters().size(), 4u);
}

/// For example an image that is optimized, or a temperature: the remedies that the message gives work.
TEST_F(Misuse, AnOptimizerOverTensorsOfNoModelIsAnErrorWithARemedyThatWorks) {
  const Tensor image = torch::ones({3}).requires_grad_();
  torch::optim::SGD of_image({image}, 0.5);
  expect_rejected("register them in a module", [&] { (void)amp::initialize(model, of_image, "O2", quiet()); });
  expect_rejected("put them into a group of the model's optimizer",
                  [&] { (void)amp::initialize(model, of_image, "O2", quiet()); });
  struct Holder : torch::nn::Module {
    explicit Holder(Tensor t) { register_parameter("image", std::move(t)); }
    Tensor forward(Tensor x) { return x; }
  };
  auto holder = std::make_shared<Holder>(image);
  auto [net, opt] = amp::initialize(holder, of_image, "O1", quiet().loss_scale(8.0));
  { amp::scale_loss(image.sum(), opt).backward(); }
  opt.step();
  EXPECT_TRUE(torch::equal(image, torch::full({3}, 0.5f)));
}

// Apex gives each optimizer its own masters, and the later step overwrites the earlier one's result.
TEST_F(Misuse, TwoOptimizersOverOneParameterAreAnErrorWithARemedyThatWorks) {
  for (const char* level : {"O2", "O5"}) {
    torch::optim::Adam second(model->parameters(), 0.1);
    expect_rejected("call amp::initialize again for the second optimizer",
                    [&] { (void)amp::initialize(model, std::tie(optimizer, second), level, quiet()); });
    EXPECT_EQ(second.parameters().size(), 4u);
  }
  for (const char* level : {"O0", "O1", "O3", "O4"}) {
    Mlp shared;
    torch::optim::SGD first(shared->parameters(), 0.1);
    torch::optim::Adam second(shared->parameters(), 0.1);
    auto [net, opts] = amp::initialize(shared, std::tie(first, second), level, quiet().loss_scale(8.0));
    const auto turn = [&network = net](auto& opt) {
      const auto before = bytes_of(*network);
      opt.zero_grad();
      { amp::scale_loss(network->forward(features()).sum(), opt).backward(); }
      opt.step();
      EXPECT_NE(bytes_of(*network), before);
    };
    turn(std::get<0>(opts));
    turn(std::get<1>(opts));
  }
}

TEST_F(Misuse, Float64ModelsCauseAWarningAtEveryLevel) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    Mlp in_float64;
    in_float64->fc2->to(torch::kDouble);
    CaughtWarnings warnings;
    auto net = amp::initialize(in_float64, level, quiet());
    EXPECT_TRUE(contains(warnings.text, "found the parameter 'fc2.weight' in Double"));
    warnings.text.clear();
    auto again = amp::initialize(model, level, quiet());
    EXPECT_EQ(warnings.text, "") << "float32";
    Mlp disabled;
    disabled->to(torch::kDouble);
    auto left_alone = amp::initialize(disabled, level, quiet().enabled(false));
    EXPECT_EQ(warnings.text, "");
  }
}

TEST_F(Misuse, AParameterOutsideTheModelIsTrained) {
  const Tensor temperature = torch::ones({}).requires_grad_();
  auto params = model->parameters();
  params.push_back(temperature);
  torch::optim::SGD with_extra(params, 0.5);
  auto [net, opt] = amp::initialize(model, with_extra, "O2", quiet().loss_scale(8.0));
  { amp::scale_loss(net->forward(features()).sum() * 0 + temperature * 2, opt).backward(); }
  opt.step();
  EXPECT_EQ(temperature.item<float>(), 0.0f);
}

TEST_F(Misuse, Chk08AHalfParameterIsAnErrorThatNamesIt) {
  Mlp half;
  half->fc2->to(torch::kHalf);
  torch::optim::SGD sgd(half->parameters(), 0.1);
  for (const char* level : {"O0", "O2", "O3", "O5"}) {
    const auto error = message_of([&] { (void)amp::initialize(half, sgd, level, quiet()); });
    EXPECT_TRUE(contains(error, "'fc2.weight'")) << level;
    EXPECT_TRUE(contains(error, "Half")) << level;
  }
  EXPECT_EQ(half->fc1->weight.scalar_type(), torch::kFloat);
}

TEST_F(Misuse, Chk10AHalfBufferIsAnErrorThatNamesIt) {
  torch::nn::BatchNorm1d norm(4);
  norm->running_var.set_data(norm->running_var.to(torch::kHalf));
  EXPECT_TRUE(contains(message_of([&] { (void)amp::initialize(norm, "O2", quiet()); }), "'running_var'"));
}

TEST_F(Misuse, Mw04ADoubleParameterOutsideTheModelIsATypeError) {
  auto params = model->parameters();
  params.push_back(torch::ones({2}, torch::kDouble).requires_grad_());
  torch::optim::SGD odd(params, 0.1);
  EXPECT_THROW((void)amp::initialize(model, odd, "O2", quiet()), c10::TypeError);
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
}

TEST_F(Misuse, LbfgsWithMasterWeightsIsAnErrorThatNamesO0) {
  torch::optim::LBFGS lbfgs(model->parameters());
  for (const char* level : {"O2", "O5"}) {
    expect_rejected("LBFGS cannot be used with master weights: it calls a closure that runs backward many times a step. Use O0",
                    [&] { (void)amp::initialize(model, lbfgs, level, quiet()); });
  }
}

TEST_F(Misuse, Opt01AHandleCannotBeInitializedAgain) {
  auto [net, opt] = amp::initialize(model, optimizer, "O0", quiet());
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::initialize(model, opt, "O0", quiet()); }), "only once"));
}

TEST_F(Misuse, TheSameOptimizerTwiceIsRejected) {
  expect_rejected("twice", [&] { (void)amp::initialize(model, std::tie(optimizer, optimizer), "O2", quiet()); });
}

TEST_F(Misuse, Sl01ScaleLossBeforeInitializeIsAnError) {  // SD-02
  const Tensor loss = model->forward(features()).sum();
  expect_rejected("before amp::initialize", [&] { (void)amp::scale_loss(loss, optimizer); });
  EXPECT_TRUE(contains(message_of([] { (void)amp::state_dict(); }), "amp::initialize"));
  EXPECT_TRUE(contains(message_of([&] { (void)amp::master_params(optimizer); }), "amp::initialize"));
}

TEST_F(Misuse, LossScalesOfADisabledSessionAreAnErrorThatSaysSo) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().enabled(false));
  for (const auto& call : std::vector<std::function<void()>>{[] { (void)amp::state_dict(); }, [] { (void)amp::loss_scaler(0); },
                                                             [] { amp::load_state_dict({}); }}) {
    EXPECT_TRUE(contains(message_of(call), "after amp::initialize(enabled=false): there are no loss scalers"));
  }
}

// The first call has moved the parameters into a handle.
TEST_F(Misuse, AnOptimizerIsInitializedOnceAlsoWithoutAmp) {
  const auto without_amp = [&] { return amp::initialize(model, optimizer, "O2", quiet().enabled(false)); };
  auto [net, opt] = without_amp();
  EXPECT_TRUE(contains(message_of([&] { (void)without_amp(); }), "have moved to the handle"));
  std::unique_ptr<torch::optim::Optimizer> handle = std::make_unique<decltype(opt)>(std::move(opt));
  EXPECT_TRUE(
      contains(message_of([&] { (void)amp::initialize(model, handle, "O2", quiet().enabled(false)); }), "returned before"));
  EXPECT_NE(handle, nullptr);
}

TEST_F(Misuse, AModelThatAmpHasCastIsNotTrainedWithoutAmp) {
  { auto [net, opt] = amp::initialize(model, optimizer, "O5", quiet()); }
  torch::optim::SGD next(model->parameters(), 0.1);
  EXPECT_TRUE(
      contains(message_of([&] { (void)amp::initialize(model, next, "O5", quiet().enabled(false)); }), "Initialize it at O0"));
  auto [net, opt] = amp::initialize(model, next, "O0", quiet());
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
}

class OriginalAtLevel : public AmpTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(OriginalAtLevel, InScaleLossAndMasterParamsIsAnError) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet());
  const Tensor loss = net->forward(features()).sum();
  EXPECT_TRUE(contains(message_of([&] { (void)amp::scale_loss(loss, optimizer); }), "handle"));
  EXPECT_TRUE(contains(message_of([&] { (void)amp::master_params(optimizer); }), "handle"));
  EXPECT_TRUE(contains(message_of([&] { (void)amp::step_result(optimizer); }), "handle"));
}
INSTANTIATE_TEST_SUITE_P(Levels, OriginalAtLevel, ::testing::Values("O0", "O2", "O3", "O5"));

TEST_F(Misuse, AMovedFromHandleIsAnError) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  auto moved = std::move(opt);
  const Tensor loss = net->forward(features()).sum();
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt); }), "moved"));
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "moved"));
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.zero_grad(); }), "moved"));
  { amp::scale_loss(loss, moved).backward(); }
  moved.step();
}

TEST_F(Misuse, AHandleSlicedIntoAPlainOptimizerIsAnError) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  opt.zero_grad();
  torch::optim::SGD sliced = std::move(opt);
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "moved"));
}

TEST_F(Misuse, AComplexLossIsAnErrorWithARemedyThatWorks) {
  for (const char* level : {"O0", "O1", "O2"}) {
    Mlp trained;
    torch::optim::SGD sgd(trained->parameters(), 0.1);
    auto [net, opt] = amp::initialize(trained, sgd, level, quiet());
    const Tensor real = net->forward(features()).to(torch::kFloat).sum();
    const Tensor loss = torch::complex(real, torch::ones({}));
    EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt); }), "torch::real(loss)")) << level;
    { amp::scale_loss(torch::real(loss), opt).backward(); }
    EXPECT_TRUE(trained->fc1->weight.grad().defined()) << level;
  }
}

TEST_F(Misuse, NestedBlocksOfOneOptimizerAreAnError) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const Tensor loss = net->forward(features()).sum();
  auto outer = amp::scale_loss(loss, opt);
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt); }), "finish()"));
  outer.backward();
  outer.finish();
  opt.step();
}

TEST_F(Misuse, StepAndClippingInsideTheBlockAreErrors) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
  scaled.backward();
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "inside a scale_loss block"));
  EXPECT_TRUE(contains(message_of([&opt = opt] { amp::clip_grad_norm_(opt, 1.0); }), "inside a scale_loss block"));
}

TEST_F(Misuse, ALossIdOutOfRangeIsAnIndexError) {  // SL-03
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const Tensor loss = net->forward(features()).sum();
  for (int64_t id : {-1, 1, 99}) {
    EXPECT_THROW((void)amp::scale_loss(loss, opt, id), c10::IndexError);
    EXPECT_TRUE(contains(message_of([&, &opt = opt] { (void)amp::scale_loss(loss, opt, id); }), "num_losses"));
  }
}

TEST_F(Misuse, OptimizersOfDifferentInitializeCallsInOneBlockAreAnError) {
  Mlp other;
  torch::optim::SGD other_sgd(other->parameters(), 0.1);
  auto [net_a, opt_a] = amp::initialize(model, optimizer, "O2", quiet());
  auto [net_b, opt_b] = amp::initialize(other, other_sgd, "O2", quiet());
  const Tensor loss = net_a->forward(features()).sum() + net_b->forward(features()).sum();
  EXPECT_TRUE(contains(message_of([&, &a = opt_a, &b = opt_b] { (void)amp::scale_loss(loss, {a, b}); }), "different"));
  { amp::scale_loss(loss, opt_a).backward(); }
}

TEST_F(Misuse, AGradientOfAnotherShapeOrDtypeIsAnErrorThatNamesTheParameter) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const auto before = bytes_of(*model);
  for (const Tensor& wrong : {torch::ones({1}, torch::kHalf), torch::ones_like(model->fc1->weight, torch::kLong)}) {
    auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
    scaled.backward();
    model->fc1->weight.mutable_grad() = wrong;
    const auto message = message_of([&] { scaled.finish(); });
    EXPECT_TRUE(contains(message, "fc1.weight")) << message;
    EXPECT_TRUE(contains(message, "zero_grad(true)")) << message;
    opt.zero_grad();
  }
  EXPECT_EQ(bytes_of(*model), before);
}

TEST_F(Misuse, ClipGradNormRejectsAnInvalidNorm) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  EXPECT_THROW(amp::clip_grad_norm_(opt, 0.0), c10::ValueError);
}

TEST_F(Misuse, ClipGradNormNamesASparseGradient) {
  auto [net, opt] = amp::initialize(model, optimizer, "O0", quiet());
  model->fc1->weight.mutable_grad() = torch::ones_like(model->fc1->weight).to_sparse();
  EXPECT_TRUE(contains(message_of([&opt = opt] { amp::clip_grad_norm_(opt, 1.0); }), "sparse=false"));
}

}  // namespace
}  // namespace apex::test
