// apex::mlp::MLP and apex::fused_dense compared with the layers that they replace, in float64, in every dtype, at every level.
#include <apex_cpp/fused_dense.h>
#include <apex_cpp/mlp.h>

#include <algorithm>
#include <cmath>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using fused_dense::FusedDense;
using fused_dense::FusedDenseGeluDense;
using mlp::MLP;
using torch::Tensor;

Tensor activated(const Tensor& x, const std::string& name) {
  return name == "relu" ? torch::relu(x) : name == "sigmoid" ? torch::sigmoid(x) : x;
}

struct OutputAndGrads {
  Tensor output;
  std::vector<Tensor> grads;  // of the input, then of the parameters
};

template <class Forward>
OutputAndGrads run_dense(const Forward& forward, const Tensor& input, std::vector<Tensor> parameters) {
  const Tensor x = input.detach().clone().requires_grad_();
  const Tensor output = forward(x);
  parameters.insert(parameters.begin(), x);
  return {output.detach(), torch::autograd::grad({output.square().sum()}, parameters)};
}

// In float64, sums of at most 72 terms in two orders take some hundred roundings of 2^-53, together 1e-14.
void expect_same_results(const OutputAndGrads& found, const OutputAndGrads& want, double relative) {
  EXPECT_TRUE(torch::allclose(found.output, want.output, relative, relative));
  ASSERT_EQ(found.grads.size(), want.grads.size());
  for (size_t i = 0; i < found.grads.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found.grads[i], want.grads[i], relative, relative)) << i;
  }
}

Tensor layer_by_layer(const MLP& mlp, Tensor x, const std::vector<Tensor>& weights, const std::vector<Tensor>& biases) {
  for (size_t i = 0; i < weights.size(); ++i) {
    x = torch::matmul(x, weights[i].t());
    if (!biases.empty()) x = x + biases[i];
    x = activated(x, mlp->activation);
  }
  return x;
}

TEST(MlpModule, EqualsItsLayersInSequence) {
  for (const char* activation : {"none", "relu", "sigmoid"}) {
    for (const bool bias : {true, false}) {
      SCOPED_TRACE(::testing::Message() << activation << " " << bias);
      MLP mlp(std::vector<int64_t>{7, 16, 5, 3}, bias, activation);
      mlp->to(torch::kDouble);
      for (const Tensor& input : {torch::randn({9, 7}, torch::kDouble), torch::randn({2, 4, 7}, torch::kDouble)}) {
        const auto by_layers = [&](const Tensor& x) { return layer_by_layer(mlp, x, mlp->weights, mlp->biases); };
        expect_same_results(run_dense([&](const Tensor& x) { return mlp->forward(x); }, input, mlp->parameters()),
                            run_dense(by_layers, input, mlp->parameters()), 1e-12);
      }
    }
  }
}

TEST(MlpModule, HasApexsNamesAndInitialization) {
  MLP mlp(std::vector<int64_t>{400, 600, 200});
  std::vector<std::string> names;
  for (const auto& parameter : mlp->named_parameters()) names.push_back(parameter.key());
  EXPECT_EQ(names, (std::vector<std::string>{"weight_0", "bias_0", "weight_1", "bias_1"}));
  // With 240,000 draws the relative standard error of the deviation is 1/690; 5 times that is exceeded once in millions of
  // runs.
  EXPECT_NEAR(mlp->weights[0].std().item<double>() / std::sqrt(2.0 / 1000), 1, 5.0 / 690);
  EXPECT_NEAR(mlp->biases[0].std().item<double>() / std::sqrt(1.0 / 600), 1, 5.0 / std::sqrt(1200));
  // The standard error of a mean is the deviation over the root of the number of draws.
  EXPECT_NEAR(mlp->weights[0].mean().item<double>(), 0, 5 * std::sqrt(2.0 / 1000 / 240000));
  EXPECT_NEAR(mlp->biases[0].mean().item<double>(), 0, 5 * std::sqrt(1.0 / 600 / 600));
  std::ostringstream text;
  text << *mlp;
  EXPECT_TRUE(contains(text.str(), "activation=relu")) << text.str();
}

TEST(MlpModule, ClonesAndCopiesKeepTheirOwnParameters) {
  MLP mlp(std::vector<int64_t>{4, 3});
  const auto copy = std::dynamic_pointer_cast<mlp::MLPImpl>(mlp->clone());
  EXPECT_TRUE(torch::equal(copy->weights[0], mlp->weights[0]));
  EXPECT_FALSE(copy->weights[0].is_same(mlp->weights[0]));
  EXPECT_TRUE(copy->weights[0].is_same(copy->named_parameters()["weight_0"]));
}

TEST(MlpModule, RejectsInvalidArguments) {
  EXPECT_TRUE(contains(message_of([] { MLP(std::vector<int64_t>{4, 3}, true, "gelu"); }), "'none', 'relu' or 'sigmoid'"));
  EXPECT_THROW(MLP(std::vector<int64_t>{4, 3}, true, "gelu"), c10::TypeError);
  EXPECT_THROW(MLP(std::vector<int64_t>{4}), c10::ValueError);
  EXPECT_THROW(MLP(std::vector<int64_t>{4, 0}), c10::ValueError);
  MLP mlp(std::vector<int64_t>{4, 3});
  EXPECT_TRUE(contains(message_of([&] { mlp->forward(torch::ones({2, 5})); }), "[2, 5]"));
  EXPECT_TRUE(contains(message_of([&] { mlp->forward(torch::tensor(1.0)); }), "[]"));
}

TEST(FusedDenseModules, EqualTheLayersTheyReplace) {
  const Tensor input = torch::randn({9, 7}, torch::kDouble);
  for (const bool bias : {true, false}) {
    FusedDense dense(7, 5, bias);
    dense->to(torch::kDouble);
    EXPECT_EQ(dense->bias.defined(), bias);
    const auto by_hand = [&](const Tensor& x) {
      const Tensor product = torch::matmul(x, dense->weight.t());
      return bias ? product + dense->bias : product;
    };
    expect_same_results(run_dense([&](const Tensor& x) { return dense->forward(x); }, input, dense->parameters()),
                        run_dense(by_hand, input, dense->parameters()), 1e-12);
  }
  FusedDenseGeluDense both(7, 16, 5);
  both->to(torch::kDouble);
  const auto by_hand = [&](const Tensor& x) {
    const Tensor h = torch::matmul(x, both->weight1.t()) + both->bias1;
    const Tensor gelu = 0.5 * h * (1 + torch::tanh(std::sqrt(2 / M_PI) * (h + 0.044715 * h.pow(3))));
    return torch::matmul(gelu, both->weight2.t()) + both->bias2;
  };
  expect_same_results(run_dense([&](const Tensor& x) { return both->forward(x); }, input, both->parameters()),
                      run_dense(by_hand, input, both->parameters()), 1e-12);
}

TEST(FusedDenseModules, AreInitializedLikeLinearAndCanBeCloned) {
  FusedDenseGeluDense both(100, 300, 50);
  // Of 30,000 uniform draws, the largest is within 1 % of the bound with probability 1 - e^-300.
  EXPECT_NEAR(both->weight1.abs().max().item<double>(), 0.1, 0.001);
  EXPECT_LE(both->weight1.abs().max().item<double>(), 0.1);
  EXPECT_LE(both->bias2.abs().max().item<double>(), 1 / std::sqrt(300.0));
  const auto copy = std::dynamic_pointer_cast<fused_dense::FusedDenseGeluDenseImpl>(both->clone());
  EXPECT_TRUE(torch::equal(copy->weight2, both->weight2));
  FusedDense plain(3, 2, false);
  EXPECT_EQ(std::dynamic_pointer_cast<fused_dense::FusedDenseImpl>(plain->clone())->parameters().size(), 1u);
  std::ostringstream text;
  text << *both << *plain;
  EXPECT_TRUE(contains(text.str(), "intermediate_features=300") && contains(text.str(), "bias=false")) << text.str();
}

TEST(FusedDenseModules, MayHaveOneFeature) {
  FusedDense dense(1, 1);
  const Tensor x = torch::ones({2, 1});
  EXPECT_TRUE(torch::equal(dense->forward(x), x * dense->weight + dense->bias));
}

TEST(FusedDenseModules, RejectUnsupportedArguments) {
  EXPECT_TRUE(contains(message_of([] { FusedDenseGeluDense(3, 4, 2, false); }), "bias=false is not supported"));
  EXPECT_THROW(FusedDense(0, 2), c10::ValueError);
  EXPECT_THROW(FusedDenseGeluDense(3, -4, 2), c10::ValueError);
  FusedDense dense(3, 2);
  EXPECT_TRUE(contains(message_of([&] { dense->forward(torch::ones({2, 5})); }), "in_features, 3"));
  EXPECT_TRUE(contains(message_of([&] { dense->forward(torch::tensor(1.0)); }), "[], whose last dimension"));
}

/// The three layers in sequence.
struct DenseNetImpl : torch::nn::Module {
  DenseNetImpl() { register_module("mlp", mlp), register_module("dense", dense), register_module("both", both); }
  Tensor forward(const Tensor& x) {
    const Tensor h = mlp(x);
    of_mlp = h.scalar_type();
    const Tensor d = dense(h);
    of_dense = d.scalar_type();
    const Tensor y = both(d);
    of_both = y.scalar_type();
    return y;
  }
  MLP mlp{std::vector<int64_t>{6, 16, 8}};
  FusedDense dense{8, 8};
  FusedDenseGeluDense both{8, 16, 3};
  at::ScalarType of_mlp{}, of_dense{}, of_both{};
};
TORCH_MODULE(DenseNet);

class DenseAtLevel : public AmpTest, public ::testing::WithParamInterface<std::pair<const char*, at::ScalarType>> {};

TEST_P(DenseAtLevel, RunsInTheLevelsDtypeAndTrains) {
  torch::manual_seed(5);
  const auto [level, type] = GetParam();
  DenseNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.2);
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
  const Tensor labels = torch::tensor({0, 1, 2, 1});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor loss = torch::cross_entropy_loss(net->forward(features()).to(torch::kFloat), labels);
    last = loss.item<double>();
    if (step == 0) first = last;
    opt.zero_grad();
    { amp::scale_loss(loss, opt).backward(); }
    opt.step();
  }
  EXPECT_LT(last, first);
  const auto& seen = *net;
  EXPECT_EQ(seen.of_mlp, type);
  EXPECT_EQ(seen.of_dense, type);
  EXPECT_EQ(seen.of_both, type);
}

INSTANTIATE_TEST_SUITE_P(Levels, DenseAtLevel,
                         ::testing::Values(std::pair{"O0", at::kFloat}, std::pair{"O1", at::kHalf}, std::pair{"O2", at::kHalf},
                                           std::pair{"O3", at::kHalf}, std::pair{"O4", at::kBFloat16},
                                           std::pair{"O5", at::kBFloat16}, std::pair{"O6", at::kBFloat16}),
                         [](const auto& test) { return std::string(test.param.first); });

// Saved for backward in 16 bits, as in Apex.
TEST_F(AmpTest, FusedDenseGeluDenseComputesItsGeluIn16Bits) {
  for (const char* const level : {"O1", "O4"}) {
    FusedDenseGeluDense model(6, 16, 3);
    auto net = amp::initialize(model, level, quiet());
    const amp::trace trace;
    net->forward(features());
    const auto gelu =
        std::find_if(trace.ops().begin(), trace.ops().end(), [](const auto& op) { return op.name == "aten::gelu"; });
    ASSERT_NE(gelu, trace.ops().end()) << trace;
    EXPECT_NE(gelu->outputs.at(0), at::kFloat) << trace;
    amp::reset();
  }
}

TEST(DenseInFloat32Modules, RunsInFloat32) {
  for (const char* level : {"O1", "O2", "O4", "O5"}) {
    DenseNet model;
    const std::vector<std::string> names{"mlp", "dense", "both"};
    auto net = amp::initialize(model, level, quiet().float32_modules(names).cast_model_outputs(at::kFloat));
    net->forward(features());
    for (const auto type : {net->of_mlp, net->of_dense, net->of_both}) EXPECT_EQ(type, at::kFloat) << level;
    amp::reset();
  }
}

TEST(DenseDtypes, OutputsEqualFloat64WithinRounding) {
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    DenseNet net;
    net->to(dtype);
    const Tensor input = torch::randn({11, 6}).to(dtype);
    const Tensor found = net->forward(input);
    EXPECT_EQ(found.scalar_type(), dtype);
    net->to(torch::kDouble);
    // Values of size 1 through five layers, each of which rounds products, sums and activations to the dtype a few times.
    const double step = dtype == torch::kFloat ? 0x1p-24 : dtype == torch::kHalf ? 0x1p-11 : 0x1p-8;
    EXPECT_TRUE(torch::allclose(found.to(torch::kDouble), net->forward(input.to(torch::kDouble)), 0, 40 * step)) << dtype;
  }
}

}  // namespace
}  // namespace apex::test
