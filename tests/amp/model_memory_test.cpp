// Parameters and buffers that share memory with other tensors, and counters that 16 bits cannot hold.
#include "tests/amp/every_level.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ModelMemory : public AtEveryLevel {
 protected:
  bool casts_model() const { return !casts_operators() && level() != std::string("O0"); }
  bool has_masters() const { return casts_model() && level() != std::string("O3"); }
  /// The warnings of `initialize` for this model.
  template <class Net>
  std::string warnings_of(Net& model, const amp::InitializeOptions& options = quiet()) {
    CaughtWarnings warnings;
    auto net = amp::initialize(model, level(), options);
    return warnings.text;
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, ModelMemory, kEveryLevel, [](const auto& test) { return test.param; });

// ---- views ----

struct ViewingImpl : torch::nn::Module {
  explicit ViewingImpl(bool keeps_view) {
    scale = register_parameter("scale", torch::ones({6}));
    table = register_buffer("table", torch::full({2, 3}, 0.5));
    if (keeps_view) row = scale.view({1, 6}), column = table.select(1, 0);
  }
  Tensor forward(Tensor x) { return x * (row.defined() ? row : scale); }
  Tensor scale, table, row, column;
};
TORCH_MODULE(Viewing);

TEST_P(ModelMemory, ViewsMadeInTheConstructorCauseAWarning) {
  Viewing with(true), without(false);
  const std::string text = warnings_of(with);
  EXPECT_EQ(contains(text, "'scale', 'table'"), casts_model()) << text;
  EXPECT_EQ(text.empty(), !casts_model());
  EXPECT_EQ(warnings_of(without), "");
}

TEST_P(ModelMemory, PretrainedWeightsAndEarlierPassesCauseNoWarning) {
  Mlp model;
  const Tensor pretrained = torch::randn_like(model->fc1->weight).detach();
  model->fc1->weight.set_data(pretrained);
  model->forward(features()).sum().backward();
  EXPECT_EQ(warnings_of(model), "");
  EXPECT_EQ(warnings_of(model), "") << "initialized again";
}

// ---- parameters tied by set_data ----

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    encoder = register_module("encoder", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    decoder = register_module("decoder", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    decoder->weight.set_data(encoder->weight);
  }
  Tensor forward(Tensor x) { return decoder(torch::tanh(encoder(x))); }
  torch::nn::Linear encoder{nullptr}, decoder{nullptr};
};
TORCH_MODULE(Tied);

/// As in plain training: the optimizer steps the shared memory with each parameter's gradient in turn.
TEST_P(ModelMemory, TiedParametersStayTiedAndAreSteppedByBothGradients) {
  constexpr double kRate = 0.125;
  Tied model;
  torch::optim::SGD sgd(model->parameters(), kRate);
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet().loss_scale(8.0));
  for (int i = 0; i < 3; ++i) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).to(torch::kFloat).square().sum(), opt).backward(); }
    const auto stepped = amp::master_params(opt);
    ASSERT_EQ(stepped.size(), 2u);
    Tensor expected = stepped[0].detach().clone();
    for (const Tensor& each : stepped) expected.add_(each.grad(), -kRate);
    opt.step();
    for (const Tensor& each : amp::master_params(opt)) EXPECT_TRUE(torch::equal(each, expected)) << i;
    const Tensor& weight = model->encoder->weight;
    EXPECT_TRUE(torch::equal(weight, expected.to(weight.scalar_type()))) << i;
    EXPECT_EQ(weight.const_data_ptr(), model->decoder->weight.const_data_ptr());
  }
}

TEST_P(ModelMemory, TiesThatAreMadeAndUndoneBetweenStepsAreFollowed) {
  constexpr double kRate = 0.125;
  Tied model;
  Tensor &first = model->encoder->weight, &second = model->decoder->weight;
  second.set_data(second.detach().clone());
  torch::optim::SGD sgd(model->parameters(), kRate);
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet().loss_scale(8.0));
  const auto expect_plain_step = [&, &net = net, &opt = opt](bool tied) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).to(torch::kFloat).square().sum(), opt).backward(); }
    const auto stepped = amp::master_params(opt);
    std::vector<Tensor> expected;
    for (const Tensor& each : stepped) {
      expected.push_back(each.detach().clone());
      for (const Tensor& of : stepped) {
        if (tied || of.is_same(each)) expected.back().add_(of.grad(), -kRate);
      }
    }
    opt.step();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(amp::master_params(opt)[i], expected[i])) << i << tied;
    EXPECT_TRUE(torch::equal(first, expected[0].to(first.scalar_type()))) << tied;
    EXPECT_TRUE(torch::equal(second, expected[1].to(second.scalar_type()))) << tied;
    EXPECT_EQ(first.const_data_ptr() == second.const_data_ptr(), tied);
  };
  for (int i = 0; i < 2; ++i) {
    expect_plain_step(false);
    second.set_data(first);
    expect_plain_step(true);
    second.set_data(second.detach().clone());
  }
  expect_plain_step(false);
}

TEST_P(ModelMemory, TiesSurviveASecondInitialize) {
  Tied model;
  for (const char* each : {"O2", level()}) {
    auto net = amp::initialize(model, each, quiet());
    EXPECT_EQ(model->encoder->weight.const_data_ptr(), model->decoder->weight.const_data_ptr()) << each;
  }
}

TEST_P(ModelMemory, TiesToAFloat32ModuleStay) {
  Tied model;
  auto net = amp::initialize(model, level(), quiet().float32_modules(std::vector<std::string>{"encoder"}));
  EXPECT_EQ(model->decoder->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(model->encoder->weight.const_data_ptr(), model->decoder->weight.const_data_ptr());
}

TEST_P(ModelMemory, TiesThatACastCannotKeepAreAnError) {
  Tied model;
  model->decoder->weight.set_data(model->encoder->weight.detach().t());
  const auto error = message_of([&] { (void)amp::initialize(model, level(), quiet()); });
  EXPECT_EQ(contains(error, "'encoder.weight' of shape [6, 6] and 'decoder.weight'"), casts_model()) << error;
  EXPECT_EQ(model->decoder->weight.const_data_ptr(), model->encoder->weight.const_data_ptr()) << "nothing is changed";
}

TEST_P(ModelMemory, TiedParametersInTwoOptimizersAreAnErrorWithMasters) {
  Tied model;
  torch::optim::SGD first(model->encoder->parameters(), 0.1), second(model->decoder->parameters(), 0.1);
  const auto error = message_of([&] { (void)amp::initialize(model, std::tie(first, second), level(), quiet()); });
  EXPECT_EQ(contains(error, "two master weights of one parameter"), has_masters()) << error;
}

// ---- counters ----

struct CallCounterImpl : torch::nn::Module {
  CallCounterImpl() {
    calls = register_buffer("calls", torch::full({1}, 2047.0));
    average = register_buffer("average", torch::full({}, 0.25));
    whole = register_buffer("whole", torch::zeros({}, torch::kLong));
    norm = register_module("norm", torch::nn::BatchNorm1d(1));
  }
  Tensor forward(Tensor x) {
    calls.add_(1);
    return norm(x.sum(1, true));
  }
  Tensor calls, average, whole;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(CallCounter);

TEST_P(ModelMemory, ACounterCastTo16BitsCausesAWarningThatNamesIt) {
  CallCounter model;
  const std::string text = warnings_of(model);
  EXPECT_EQ(contains(text, "has cast the buffers 'calls' to"), casts_model()) << text;
  EXPECT_EQ(contains(text, level() >= std::string("O5") ? "stops at 256" : "stops at 2048"), casts_model()) << text;
  EXPECT_EQ(text.empty(), !casts_model());
}

TEST_P(ModelMemory, ACounterListedInFloat32ModulesStaysFloat32) {
  CallCounter model;
  CaughtWarnings warnings;
  auto net = amp::initialize(model, level(), quiet().float32_modules(std::vector<std::string>{"calls"}));
  EXPECT_EQ(warnings.text, "");
  EXPECT_EQ(model->calls.scalar_type(), torch::kFloat);
  EXPECT_EQ(model->average.scalar_type() != torch::kFloat, casts_model()) << "the others are cast";
  for (int i = 0; i < 3; ++i) net->forward(features());
  EXPECT_EQ(net->calls.item<double>(), 2050);
}

}  // namespace
}  // namespace apex::test
