// Defects of Apex's O1 and of its casts at the model's edge.
#include <torch/nn/parallel/data_parallel.h>

#include <map>
#include <thread>

#include "tests/known_bugs/known_bugs.h"

namespace apex::test {
namespace {

using torch::Tensor;

// Apex evaluated with the casts of weights that had been replaced since.
TEST_F(KnownBugs, Bug01EvaluationAfterLoadingOtherWeightsUsesThem) {
  torch::nn::Linear model(6, 3), other(6, 3);
  auto net = amp::initialize(model, "O1", quiet());
  const torch::NoGradGuard no_grad;
  const Tensor first = net->forward(features());
  model->weight.copy_(other->weight);
  model->bias.copy_(other->bias);
  const Tensor second = net->forward(features());
  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(torch::equal(second, torch::linear(features(), other->weight, other->bias)));
}

// Apex's cache looked for a second edge of the cast's node, which newer versions of PyTorch do not have.
TEST_F(KnownBugs, Bug02AWeightUsedTwiceInAnIterationTrains) {
  torch::nn::Linear model(6, 6);
  auto net = amp::initialize(model, "O1", quiet());
  for (int i = 0; i < 2; ++i) {
    model->zero_grad();
    const Tensor once = model->forward(features());
    model->forward(once.to(torch::kFloat)).sum().backward();
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
    const amp::disable_casts casts_off;
    const auto layer = [&](const Tensor& x) { return torch::addmm(model->bias, x, model->weight.t()); };
    const Tensor want = torch::autograd::grad({layer(layer(features())).sum()}, {model->weight})[0];
    // Operators round to 11 bits, a dozen times one after the other. Without one of the two uses a large part would be missing.
    const Tensor off = model->weight.grad() - want;
    EXPECT_LE(off.norm().item<double>(), 12 * 0x1p-11 * want.norm().item<double>()) << i;
  }
}

// The replicas of DataParallel ran the forward pass, and so the weights, of the model that they were copied from.
TEST_F(KnownBugs, Bug04AReplicaRunsItsOwnWeights) {
  for (const char* level : {"O0", "O2", "O3"}) {
    Replicated model;
    auto net = amp::initialize(model, level, quiet());
    const auto replica = std::dynamic_pointer_cast<amp::Amped<ReplicatedImpl>>(net->clone());
    ASSERT_TRUE(replica);
    const torch::NoGradGuard no_grad;
    for (auto& param : replica->parameters()) param.zero_();
    EXPECT_TRUE(torch::equal(replica->forward(features()), torch::zeros({4, 3}))) << level;
    EXPECT_FALSE(torch::equal(net->forward(features()), torch::zeros({4, 3}))) << level;
    const std::vector<torch::Device> devices{torch::kCPU};
    const Tensor parallel = torch::nn::parallel::data_parallel(net, features(), devices, torch::Device(torch::kCPU));
    EXPECT_TRUE(torch::equal(parallel, net->forward(features()))) << level;
  }
}

TEST_F(KnownBugs, Bug12EinsumIsCast) {
  auto net = amp::initialize(Mlp(), "O1", quiet());
  const Tensor x = torch::ones({2, 3}), w = torch::ones({3, 4});
  EXPECT_EQ(torch::einsum("ij,jk->ik", {x, w}).scalar_type(), torch::kHalf);
}

// Apex patched some of the names under which Python reaches these.
TEST_F(KnownBugs, Bug13BilinearAndPreluAcceptMixedDtypesInAnyForm) {
  auto net = amp::initialize(Mlp(), "O1", quiet());
  const Tensor half = torch::ones({2, 3}, torch::kHalf), single = torch::ones({2, 4});
  torch::nn::Bilinear bilinear(3, 4, 5);
  EXPECT_EQ(bilinear(half, single).sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(torch::bilinear(half, single, bilinear->weight, bilinear->bias).sizes(), (std::vector<int64_t>{2, 5}));
  torch::nn::PReLU prelu;
  const Tensor want = torch::ones({2, 3});
  EXPECT_TRUE(torch::equal(prelu(half).to(torch::kFloat), want));
  EXPECT_TRUE(torch::equal(torch::prelu(half, prelu->weight).to(torch::kFloat), want));
  EXPECT_TRUE(torch::equal(half.prelu(prelu->weight).to(torch::kFloat), want));
}

// Casting the weights of an RNN one by one left views of a chunk that was gone.
TEST_F(KnownBugs, Bug14RecurrentNetworksRunAndTrain) {
  for (const char* level : {"O1", "O2"}) {
    torch::nn::LSTM model(torch::nn::LSTMOptions(6, 5).num_layers(2).bidirectional(true));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    const auto before = bytes_of(*model);
    const auto output = std::get<0>(net->forward(features().unsqueeze(0)));
    { amp::scale_loss(output.to(torch::kFloat).sum(), opt).backward(); }
    opt.step();
    EXPECT_NE(bytes_of(*model), before) << level;
    for (const auto& param : amp::master_params(opt)) EXPECT_TRUE(torch::isfinite(param).all().item<bool>()) << level;
    amp::reset();
  }
}

TEST_F(KnownBugs, Bug15AnotherModelInTheProcessIsUnaffected) {
  Mlp amped, other;
  const Tensor want = other->forward(features()).detach();
  auto net = amp::initialize(amped, "O1", quiet());
  {
    const torch::NoGradGuard no_grad;
    // Two layers in float16: some ten roundings of 2^-11 of values near 1.
    EXPECT_TRUE(torch::allclose(other->forward(features()).to(torch::kFloat), want, 0, 10 * 0x1p-11));
  }
  other->forward(features()).sum().backward();
  for (const auto& param : other->parameters()) EXPECT_EQ(param.grad().scalar_type(), torch::kFloat);
  Tensor elsewhere;
  std::thread([&] { elsewhere = other->forward(features()); }).join();
  EXPECT_TRUE(torch::equal(elsewhere, want)) << "a thread that did not initialize has no casts";
}

// Apex's message recommends an option that its initialize does not take.
TEST_F(KnownBugs, Bug16TheBceErrorNamesAnOptionOfInitialize) {
  const Tensor half = torch::full({2}, 0.5, torch::kHalf);
  {
    auto net = amp::initialize(Mlp(), "O1", quiet());
    const auto error = message_of([&] { torch::binary_cross_entropy(half, half); });
    EXPECT_TRUE(contains(error, "binary_cross_entropy_with_logits"));
    EXPECT_TRUE(contains(error, "allow_banned"));
    EXPECT_THROW(torch::binary_cross_entropy(half, half), c10::NotImplementedError);
  }
  auto net = amp::initialize(Mlp(), "O1", quiet().allow_banned(true));
  EXPECT_EQ(torch::binary_cross_entropy(half, half).scalar_type(), torch::kFloat);
}

struct Named : std::map<std::string, Tensor> {
  using std::map<std::string, Tensor>::map;
  int extra = 5;
};
struct NamedNetImpl : torch::nn::Module {
  NamedNetImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  std::pair<Named, std::tuple<Tensor, int>> forward(const Tensor& x) {
    const Tensor y = fc(x);
    Named named{{"y", y}};
    named.extra = 7;
    return {named, std::make_tuple(y, 2)};
  }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(NamedNet);

// Apex rebuilt subclasses of dict as dict, and failed for named tuples.
TEST_F(KnownBugs, Bug19ContainersKeepTheirTypeAndMembers) {
  NamedNet model;
  auto net = amp::initialize(model, "O2", quiet());
  const std::pair<Named, std::tuple<Tensor, int>> out = net->forward(features());
  EXPECT_EQ(out.first.extra, 7);
  EXPECT_EQ(out.first.at("y").scalar_type(), torch::kFloat);
  EXPECT_EQ(std::get<0>(out.second).scalar_type(), torch::kFloat);
  EXPECT_EQ(std::get<1>(out.second), 2);
}

TEST_F(KnownBugs, Bug35Cache03NestedListsAreCast) {
  auto net = amp::initialize(Mlp(), "O1", quiet());
  using Nested = std::vector<std::vector<Tensor>>;
  const auto inner = amp::half_function([](const Nested& nested) { return nested[1][0].scalar_type(); });
  EXPECT_EQ(inner(Nested{{torch::ones({2})}, {torch::ones({2})}}), torch::kHalf);
}

// Apex left the first of two wrappers in place.
TEST_F(KnownBugs, Bug35Reg07RemovingARegistrationRestoresTheBuiltInRule) {
  auto net = amp::initialize(Mlp(), "O1", quiet());
  const Tensor x = torch::ones({2, 2});
  amp::register_float_function("aten::mm");
  EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
  amp::unregister_function("aten::mm");
  EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kHalf);
  amp::reset();
  EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace apex::test
