// MODEL-*, FP16U-04, INIT-12, INIT-21: what initialize does to a model, and the handle that it returns.
#include <apex_cpp/fp16_utils.h>

#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ModelHandle : public AmpTest {};

struct LevelDtypes {
  const char* level;
  torch::Dtype weight, batch_norm, inside;
};

class ModelAtLevel : public AmpTest, public ::testing::WithParamInterface<LevelDtypes> {};

/// Records the dtype that forward really receives.
struct SpyImpl : torch::nn::Module {
  SpyImpl() {
    fc = register_module("fc", torch::nn::Linear(6, 2));
    bn = register_module("bn", torch::nn::BatchNorm1d(2));
    counter = register_buffer("counter", torch::zeros({1}, torch::kLong));
  }
  Tensor forward(Tensor x) {
    seen = x.scalar_type();
    return bn(fc(x));
  }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
  Tensor counter;
  torch::Dtype seen = torch::kByte;
};
TORCH_MODULE(Spy);

TEST_P(ModelAtLevel, Model01To04CastsParametersInputsAndOutputs) {
  Spy model;
  auto net = amp::initialize(model, GetParam().level, quiet());
  EXPECT_EQ(model->fc->weight.scalar_type(), GetParam().weight);
  EXPECT_EQ(model->bn->weight.scalar_type(), GetParam().batch_norm);
  EXPECT_EQ(model->bn->running_mean.scalar_type(), GetParam().batch_norm);
  EXPECT_EQ(model->counter.scalar_type(), torch::kLong) << "integer buffers stay (CHK-10)";
  const Tensor out = net->forward(features());
  EXPECT_EQ(net->seen, GetParam().inside);
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  EXPECT_EQ(net(features()).scalar_type(), torch::kFloat);
}
INSTANTIATE_TEST_SUITE_P(Levels, ModelAtLevel,
                         ::testing::Values(LevelDtypes{"O0", torch::kFloat, torch::kFloat, torch::kFloat},
                                           LevelDtypes{"O2", torch::kHalf, torch::kFloat, torch::kHalf},
                                           LevelDtypes{"O3", torch::kHalf, torch::kHalf, torch::kHalf},
                                           LevelDtypes{"O5", torch::kBFloat16, torch::kFloat, torch::kBFloat16},
                                           LevelDtypes{"O6", torch::kBFloat16, torch::kFloat, torch::kBFloat16}),
                         [](const auto& test) { return test.param.level; });

TEST_F(ModelHandle, ParametersKeepTheirTensorImpl) {  // INIT-10
  Mlp model;
  std::vector<at::TensorImpl*> before;
  for (const auto& p : model->parameters()) before.push_back(p.unsafeGetTensorImpl());
  auto net = amp::initialize(model, "O2", quiet());
  std::vector<at::TensorImpl*> original, handle;
  for (const auto& p : model->parameters()) original.push_back(p.unsafeGetTensorImpl());
  for (const auto& p : net->parameters()) handle.push_back(p.unsafeGetTensorImpl());
  EXPECT_EQ(before, original);
  EXPECT_EQ(before, handle);
}

TEST_F(ModelHandle, Model01ExistingGradientsFollowTheDtype) {
  Mlp model;
  model->forward(features()).sum().backward();
  auto net = amp::initialize(model, "O3", quiet());
  EXPECT_EQ(model->fc1->weight.grad().scalar_type(), torch::kHalf);
}

TEST_F(ModelHandle, Model05CastModelOutputsAloneCastsOnlyOutputs) {
  Mlp model;
  auto options = quiet().cast_model_type(false).cast_model_outputs(torch::kHalf);
  auto net = amp::initialize(model, "O3", options);
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->forward(features()).scalar_type(), torch::kHalf);
}

TEST_F(ModelHandle, Prop11CastModelTypeFalseDoesNotCastTheModel) {
  Mlp model;
  auto net = amp::initialize(model, "O2", quiet().cast_model_type(false));
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->forward(features().to(torch::kDouble).to(torch::kFloat)).scalar_type(), torch::kFloat);
}

TEST_F(ModelHandle, Fp16u04OnlyAffineBatchNormStaysFloat32) {
  torch::nn::Sequential model(torch::nn::BatchNorm2d(2), torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(2).affine(false)),
                              torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(2).affine(true)),
                              torch::nn::GroupNorm(1, 2), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  fp16_utils::convert_network(*model, torch::kHalf);
  EXPECT_EQ(model[0]->as<torch::nn::BatchNorm2d>()->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(model[0]->as<torch::nn::BatchNorm2d>()->running_var.scalar_type(), torch::kFloat);
  EXPECT_EQ(model[1]->as<torch::nn::BatchNorm2d>()->running_var.scalar_type(), torch::kHalf);
  EXPECT_EQ(model[2]->as<torch::nn::InstanceNorm2d>()->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(model[3]->as<torch::nn::GroupNorm>()->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(model[4]->as<torch::nn::LayerNorm>()->weight.scalar_type(), torch::kHalf);
}

TEST_F(ModelHandle, Rnn04RecurrentNetworksTrainAfterTheCast) {
  torch::nn::LSTM model(torch::nn::LSTMOptions(6, 4).num_layers(2).bidirectional(true));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
  auto [out, state] = net->forward(features().unsqueeze(0));
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  EXPECT_EQ(std::get<0>(state).scalar_type(), torch::kFloat);
  { amp::scale_loss(out.sum(), opt).backward(); }
  const auto before = bytes_of(*model);
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

// ---- holders, shared pointers, plain structs ----

TEST_F(ModelHandle, Init21AcceptsHoldersSharedPointersAndPlainStructs) {  // CHK-02, CHK-05
  Mlp holder;
  auto from_holder = amp::initialize(holder, "O2", quiet());
  static_assert(std::is_same_v<decltype(from_holder), amp::Model<Mlp>>);
  auto pointer = std::make_shared<MlpImpl>();
  auto from_pointer = amp::initialize(pointer, "O2", quiet());
  static_assert(std::is_same_v<decltype(from_pointer), amp::Model<MlpImpl>>);
  MlpImpl plain;
  auto from_struct = amp::initialize(plain, "O2", quiet());
  static_assert(std::is_same_v<decltype(from_struct), amp::Model<MlpImpl>>);
  for (auto* net : {&from_pointer, &from_struct}) EXPECT_EQ((*net)->forward(features()).scalar_type(), torch::kFloat);
  EXPECT_EQ(from_holder(features()).scalar_type(), torch::kFloat);
  const auto constant = from_pointer;  // as a const std::shared_ptr
  EXPECT_EQ(constant->forward(features()).scalar_type(), torch::kFloat);
  EXPECT_EQ(plain.fc1->weight.scalar_type(), torch::kHalf);
}

TEST_F(ModelHandle, Init21SeveralModelsAreReturnedInTheirShape) {
  Mlp a, b;
  ConvNet c;
  auto [nets, opts] = [&] {
    torch::optim::SGD oa(a->parameters(), 0.1);
    torch::optim::Adam oc(c->parameters(), 0.1);
    return amp::initialize(std::tie(a, c), std::tie(oa, oc), "O2", quiet());
  }();
  static_assert(std::is_same_v<decltype(nets), std::tuple<amp::Model<Mlp>, amp::Model<ConvNet>>>);
  static_assert(
      std::is_same_v<decltype(opts), std::tuple<amp::AmpOptimizer<torch::optim::SGD>, amp::AmpOptimizer<torch::optim::Adam>>>);
  EXPECT_EQ(std::get<1>(nets)->forward(images()).scalar_type(), torch::kFloat);
  std::vector<Mlp> list{Mlp(), Mlp()};
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (auto& model : list) optimizers.push_back(std::make_unique<torch::optim::AdamW>(model->parameters()));
  auto [list_nets, list_opts] = amp::initialize(list, optimizers, "O2", quiet());
  static_assert(std::is_same_v<decltype(list_nets), std::vector<amp::Model<Mlp>>>);
  EXPECT_EQ(list_nets.size(), 2u);
  EXPECT_EQ(list_opts.size(), 2u);
}

struct DefaultsImpl : torch::nn::Module {
  DefaultsImpl() { fc = register_module("fc", torch::nn::Linear(6, 2)); }
  std::tuple<Tensor, int> forward(const Tensor& x, std::optional<Tensor> mask = {}, int repeat = 2) {
    return {fc(mask ? x * *mask : x), repeat};
  }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Defaults);

TEST_F(ModelHandle, ForwardKeepsItsDefaultArgumentsAndTupleResult) {
  Defaults model;
  auto net = amp::initialize(model, "O2", quiet());
  auto [out, repeat] = net->forward(features());
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  EXPECT_EQ(repeat, 2);
  EXPECT_EQ(std::get<1>(net(features(), torch::ones({4, 6}), 5)), 5);
}

TEST_F(ModelHandle, PatchedModulesWorkInSequentialAndAnyModule) {
  Mlp model;
  auto net = amp::initialize(model, "O2", quiet());
  torch::nn::Sequential sequence(net.ptr(), torch::nn::ReLU());
  EXPECT_EQ(sequence->forward(features()).scalar_type(), torch::kFloat);
  torch::nn::AnyModule any(net.ptr());
  EXPECT_EQ(any.forward(features()).scalar_type(), torch::kFloat);
}

TEST_F(ModelHandle, AHandleInAContainerCastsOperatorsOnly) {
  Mlp model;
  auto net = amp::initialize(model, "O2", quiet());
  torch::nn::Sequential sequence(net, torch::nn::ReLU());
  EXPECT_EQ(sequence->forward(features()).scalar_type(), torch::kHalf);
  struct OuterImpl : torch::nn::Module {
    explicit OuterImpl(Mlp part) : part_(register_module("part", part)) {}
    Mlp part_;
  } outer(net);
  EXPECT_TRUE(torch::equal(outer.part_->forward(features()), model->forward(features()).to(torch::kHalf)));
}

TEST_F(ModelHandle, ASequentialIsAModel) {
  torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
  auto net = amp::initialize(model, "O2", quiet());
  EXPECT_EQ(net->forward(features()).scalar_type(), torch::kFloat);
  EXPECT_EQ(net(features()).scalar_type(), torch::kFloat);
}

TEST_F(ModelHandle, ConvertsBackToTheUsersHolder) {
  Mlp model;
  auto net = amp::initialize(model, "O2", quiet());
  Mlp back = net;
  EXPECT_TRUE(back->fc1->weight.is_same(model->fc1->weight));
}

TEST_F(ModelHandle, TheOriginalModelIsAnErrorOnAThreadWithoutCasts) {
  Mlp model;
  auto net = amp::initialize(model, "O2", quiet());
  std::string message;
  std::thread([&] { message = message_of([&] { model->forward(features()); }); }).join();
  EXPECT_TRUE(contains(message, "dtype"));
}

TEST_F(ModelHandle, TrainAndEvalOfTheOriginalReachTheHandle) {
  struct DropImpl : torch::nn::Module {
    DropImpl() { fc = register_module("fc", torch::nn::Linear(6, 400)); }
    Tensor forward(Tensor x) { return torch::dropout(fc(x), 0.5, is_training()); }
    torch::nn::Linear fc{nullptr};
  };
  torch::nn::ModuleHolder<DropImpl> model(std::make_shared<DropImpl>());
  auto net = amp::initialize(model, "O2", quiet());
  model->eval();
  EXPECT_TRUE(torch::equal(net->forward(features()), net->forward(features())));
  model->train();
  EXPECT_FALSE(torch::equal(net->forward(features()), net->forward(features())));
  net->eval();
  EXPECT_TRUE(torch::equal(net->forward(features()), net->forward(features())));
}

// ---- AMP_MODULE ----

struct OwnerImpl : torch::nn::Module {
  explicit OwnerImpl(int64_t in) : secret(std::make_unique<int>(41)) { fc = register_module("fc", torch::nn::Linear(in, 2)); }
  Tensor forward(Tensor x) {
    ++*secret;
    return fc(x);
  }
  std::unique_ptr<int> secret;  // cannot be copied
  torch::nn::Linear fc{nullptr};
};
AMP_MODULE(Owner);

TEST_F(ModelHandle, AmpModuleIsPatchedInPlaceAndKeepsItsType) {
  Owner model(6);
  EXPECT_EQ(model->forward(features()).scalar_type(), torch::kFloat) << "passes through before initialize";
  Owner alias = model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  static_assert(std::is_same_v<decltype(net), Owner>);
  EXPECT_EQ(model->fc->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(alias->forward(features()).scalar_type(), torch::kFloat);
  EXPECT_EQ(*net->secret, 43) << "one object, not a copy";
}

TEST_F(ModelHandle, Init03DisabledChangesNeitherModelNorForward) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, amp::OptLevel("O2"), quiet().enabled(false));
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  const Tensor x = features().to(torch::kDouble);
  EXPECT_TRUE(contains(message_of([&] { net->forward(x); }), "dtype")) << "no input cast either";
  const Tensor loss = net->forward(features()).sum();
  const auto before = bytes_of(*model);
  {
    auto scaled = amp::scale_loss(loss, opt);
    EXPECT_TRUE(scaled.tensor().is_same(loss)) << "SL-02";
    scaled.backward();
  }
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

}  // namespace
}  // namespace apex::test
