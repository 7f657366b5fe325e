// float32_modules and float32_functions: modules and functions that stay FP32 at any level, through the handle and the
// original model.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using KeptNames = std::vector<std::string>;

/// Two blocks and a head; records the dtypes of the first block's result and of its activation.
struct KeptNetImpl : torch::nn::Module {
  KeptNetImpl() {
    block = register_module("block", torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6)));
    block2 = register_module("block2", torch::nn::Linear(6, 6));
    head = register_module("head", torch::nn::Linear(6, 3));
  }
  Tensor forward(Tensor x) {
    const Tensor blocked = block->forward(x);
    const Tensor active = torch::tanh(block2(blocked));
    types = {blocked.scalar_type(), active.scalar_type()};
    return head(active);
  }
  torch::nn::Sequential block;
  torch::nn::Linear block2{nullptr}, head{nullptr};
  std::vector<at::ScalarType> types;
};
TORCH_MODULE(KeptNet);

struct Float32Modules : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const {
    const std::string level = GetParam();
    return level >= "O4" ? torch::kBFloat16 : torch::kHalf;
  }
  bool casts_model() const { return std::string(GetParam()) != "O1" && std::string(GetParam()) != "O4"; }

  std::vector<at::ScalarType> types_with(const amp::InitializeOptions& options) {
    KeptNet model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), options);
    weight = model->block2->weight.scalar_type();
    norm = model->block->named_parameters()["1.weight"].scalar_type();
    auto loss = net->forward(features()).to(torch::kFloat).pow(2).mean();
    {
      auto scaled_loss = amp::scale_loss(loss, opt);
      scaled_loss.backward();
    }
    opt.step();
    return net->types;
  }

  at::ScalarType weight = torch::kLong, norm = torch::kLong;
};

using KeptTypes = std::vector<at::ScalarType>;

TEST_P(Float32Modules, RunInFloat32WithTheirChildrenWhileOthersDoNot) {
  EXPECT_EQ(types_with(quiet()), (KeptTypes{low(), low()}));
  EXPECT_EQ(types_with(quiet().float32_modules(KeptNames{"block"})), (KeptTypes{torch::kFloat, low()}));
  EXPECT_EQ(norm, torch::kFloat);
  EXPECT_EQ(weight, casts_model() ? low() : torch::kFloat);
  EXPECT_EQ(types_with(quiet().float32_modules(KeptNames{"block2"})), (KeptTypes{low(), torch::kFloat}));
  EXPECT_EQ(weight, torch::kFloat);
}

TEST_P(Float32Modules, Float32FunctionsRunInFloat32WithinTheHandlesForward) {
  EXPECT_EQ(types_with(quiet().float32_functions(KeptNames{"aten::tanh"})), (KeptTypes{low(), torch::kFloat}));
  EXPECT_EQ(types_with(quiet().float32_functions(KeptNames{"aten::addmm"})).at(1), torch::kFloat);
}

TEST_P(Float32Modules, ListingTheWholeModelTrainsAsO0) {
  const auto trained = [](const amp::OptLevel& level) {
    torch::manual_seed(3);
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(1.0));
    auto loss = net->forward(torch::ones({4, 6})).pow(2).mean();
    {
      auto scaled_loss = amp::scale_loss(loss, opt);
      scaled_loss.backward();
    }
    opt.step();
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  };
  const auto kept = amp::OptLevel(GetParam()).with(amp::InitializeOptions().float32_modules(KeptNames{"fc1", "fc2"}));
  EXPECT_TRUE(torch::equal(trained(kept), trained("O0")));
}

TEST_P(Float32Modules, ApplyToTheOriginalModelToo) {
  KeptNet original;
  auto copy = original;
  auto net = amp::initialize(original, GetParam(), quiet().float32_modules(KeptNames{"block2"}));
  copy->forward(casts_model() ? features().to(low()) : features());
  EXPECT_EQ(copy->types.at(1), torch::kFloat);
}

TEST_P(Float32Modules, KeepAWeightSharedWithAnotherModule) {
  KeptNet model;
  model->head->register_parameter("tied", model->block2->weight);
  auto net = amp::initialize(model, GetParam(), quiet().float32_modules(KeptNames{"block2"}));
  EXPECT_EQ(model->block2->weight.scalar_type(), torch::kFloat);
}

/// Two layers with one weight, as a language model's embedding and head.
struct TiedPairImpl : torch::nn::Module {
  struct Head : torch::nn::Module {
    explicit Head(const Tensor& shared) { weight = register_parameter("weight", shared); }
    Tensor weight;
  };
  Tensor forward(const Tensor& x) {
    const Tensor logits = torch::linear(torch::tanh(first(x)), second->weight);
    type = logits.scalar_type();
    return logits;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
  std::shared_ptr<Head> second = register_module("second", std::make_shared<Head>(first->weight));
  at::ScalarType type = torch::kLong;
};
TORCH_MODULE(TiedPair);

TEST_P(Float32Modules, AreKnownByEveryNameOfATiedWeight) {
  for (const char* name : {"first", "second"}) {
    TiedPair model;
    auto net = amp::initialize(model, GetParam(), quiet().float32_modules(KeptNames{name}));
    net->forward(features());
    EXPECT_EQ(net->type, torch::kFloat) << name;
    EXPECT_EQ(model->first->weight.scalar_type(), torch::kFloat) << name;
  }
}

TEST_P(Float32Modules, MayBePartsOfTwoModels) {
  for (const char* name : {"model0.block2", "model1.block2"}) {
    KeptNet one, two;
    two->block2 = two->replace_module("block2", one->block2);
    auto nets = amp::initialize(std::tie(one, two), GetParam(), quiet().float32_modules(KeptNames{name}));
    EXPECT_EQ(one->block2->weight.scalar_type(), torch::kFloat) << name;
  }
}

struct CloneableNetImpl : torch::nn::Cloneable<CloneableNetImpl> {
  CloneableNetImpl() { reset(); }
  void reset() override {
    kept = register_module("kept", torch::nn::Linear(6, 6));
    other = register_module("other", torch::nn::Linear(6, 6));
  }
  Tensor forward(Tensor x) {
    const Tensor first = kept(x), second = other(first);
    types = {first.scalar_type(), second.scalar_type()};
    return second;
  }
  torch::nn::Linear kept{nullptr}, other{nullptr};
  std::vector<at::ScalarType> types;
};
TORCH_MODULE(CloneableNet);

TEST_P(Float32Modules, AreKeptInAClone) {
  CloneableNet model;
  auto net = amp::initialize(model, GetParam(), quiet().float32_modules(KeptNames{"kept"}));
  auto clone = std::dynamic_pointer_cast<amp::Amped<CloneableNetImpl>>(net->clone());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(clone);
    clone->forward(features());
    EXPECT_EQ(clone->types, (KeptTypes{torch::kFloat, low()})) << i;
    clone = std::dynamic_pointer_cast<amp::Amped<CloneableNetImpl>>(clone->clone());
  }
}

struct RootParameterImpl : torch::nn::Module {
  RootParameterImpl() { scale = register_parameter("scale", torch::ones({3})); }
  Tensor forward(const Tensor& x) { return x * scale; }
  Tensor scale;
};
TORCH_MODULE(RootParameter);

TEST_P(Float32Modules, CannotNameParametersOfTheRoot) {
  RootParameter model;
  const auto message =
      message_of([&] { auto net = amp::initialize(model, GetParam(), quiet().float32_modules(KeptNames{"scale"})); });
  EXPECT_NE(message.find("no module 'scale'"), std::string::npos) << message;
}

TEST_P(Float32Modules, UnknownNamesAreAnErrorAndChangeNothing) {
  KeptNet model;
  const auto message = message_of([&] {
    auto net = amp::initialize(model, GetParam(), quiet().float32_modules(KeptNames{"block2", "bloc"}));
  });
  EXPECT_NE(message.find("no module 'bloc' with parameters, which float32_modules names"), std::string::npos) << message;
  EXPECT_EQ(model->block2->weight.scalar_type(), torch::kFloat);
  const auto unknown = message_of(
      [&] { auto net = amp::initialize(model, GetParam(), quiet().float32_functions(KeptNames{"aten::no_such_operator"})); });
  EXPECT_NE(unknown.find("there is no operator 'aten::no_such_operator'"), std::string::npos) << unknown;
}

INSTANTIATE_TEST_SUITE_P(Levels, Float32Modules, ::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
