// The match policy: a program that keeps calling the original model at O2, O3, O5 and O6.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct Match : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const { return GetParam() >= std::string("O5") ? torch::kBFloat16 : torch::kHalf; }
};

TEST_P(Match, TheOriginalGivesTheHandlesGradients) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet());
  const Tensor target = torch::tensor({0, 1, 2, 1});
  const auto gradients = [&](const Tensor& output) {
    return torch::autograd::grad({torch::cross_entropy_loss(output, target)}, model->parameters());
  };
  model->eval(), net->eval();  // batch statistics would move between the two passes
  const auto by_handle = gradients(net->forward(images()));
  const Tensor output = model->forward(images());
  EXPECT_EQ(output.dtype(), low()) << "only the handle casts its output";
  const auto by_original = gradients(output);
  for (size_t i = 0; i < by_handle.size(); ++i) {
    EXPECT_TRUE(torch::equal(by_handle[i], by_original[i])) << model->named_parameters().keys()[i];
  }
}

TEST_P(Match, TrainingThroughTheOriginalEqualsTrainingThroughTheHandle) {
  const auto train = [&](bool original) {
    torch::manual_seed(5);
    ConvNet model;
    torch::optim::Adam optimizer(model->parameters(), 1e-2);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(64.0));
    for (int i = 0; i < 5; ++i) {
      opt.zero_grad();
      const Tensor output = original ? model->forward(images()) : net->forward(images());
      const Tensor loss = torch::cross_entropy_loss(output, torch::tensor({0, 1, 2, 1}));
      EXPECT_EQ(loss.dtype(), torch::kFloat);
      {
        auto scaled = amp::scale_loss(loss, opt);
        scaled.backward();
      }
      opt.step();
    }
    amp::reset();
    std::string bytes;
    for (const auto& master : amp::master_params(opt)) bytes += bytes_of(master);
    return bytes;
  };
  EXPECT_EQ(train(true), train(false));
}

/// A decoder tied by a view taken in the constructor.
struct ViewKeptImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::tanh(encoder(x)).matmul(view); }
  torch::nn::Linear encoder = register_module("encoder", torch::nn::Linear(6, 6));
  Tensor view = encoder->weight.t();
};
TORCH_MODULE(ViewKept);

TEST_P(Match, AViewOfAParameterFromBeforeInitializeIsAnError) {
  ViewKept model;
  auto net = amp::initialize(model, GetParam(), quiet());
  const auto error = message_of([&] { net->forward(features()); });
  EXPECT_TRUE(contains(error, "of the parameter 'encoder.weight'")) << error;
  model->view = model->encoder->weight.t();
  EXPECT_NO_THROW(net->forward(features()));
}

/// A complex parameter: its real part is a view with another dtype.
struct SpectralImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return fc(x).matmul(torch::real(z)); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 6));
  Tensor z = register_parameter("z", torch::ones({6, 3}, torch::kComplexFloat), /*requires_grad=*/false);
};
TORCH_MODULE(Spectral);

TEST_P(Match, AViewOfAComplexParameterIsNoError) {
  Spectral model;
  auto net = amp::initialize(model, GetParam(), quiet());
  EXPECT_NO_THROW(net->forward(features()));
}

/// A target network: amp does not manage its 16-bit weights, and it is converted to FP32.
TEST_P(Match, AFrozenCloneRunsInFloat32) {
  Replicated model;
  auto net = amp::initialize(model, GetParam(), quiet());
  Replicated target(std::dynamic_pointer_cast<ReplicatedImpl>(net->clone()));
  for (auto& param : target->parameters()) param.requires_grad_(false);
  target->to(torch::kFloat);
  const Tensor output = target->forward(features());
  EXPECT_EQ(output.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(target->fc->weight, model->fc->weight.to(torch::kFloat)));
  amp::reset();  // the same without any rules
  EXPECT_TRUE(torch::equal(output, target->forward(features())));
}

TEST_P(Match, InputsAreCastForAFrozenFirstLayer) {
  Mlp model;
  for (auto& p : model->fc1->parameters()) p.requires_grad_(false);
  auto net = amp::initialize(model, GetParam(), quiet());
  EXPECT_EQ(model->forward(features()).dtype(), low());
}

TEST_P(Match, AWeightWithoutABiasIsRecognizedThroughItsTranspose) {
  torch::nn::Linear model(torch::nn::LinearOptions(6, 3).bias(false));
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor output = model->forward(features());
  EXPECT_EQ(output.dtype(), low());
  EXPECT_TRUE(torch::equal(output.to(torch::kFloat), net->forward(features())));
}

TEST_P(Match, WorksWithoutGradientsAndInInferenceMode) {
  Mlp model;
  auto net = amp::initialize(model, GetParam(), quiet());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(model->forward(features()).dtype(), low());
  }
  const c10::InferenceMode inference;
  EXPECT_EQ(model->forward(features()).dtype(), low());
}

TEST_P(Match, RecurrentLayersAndNormalizationsMayComeFirst) {
  struct RecurrentImpl : torch::nn::Module {
    RecurrentImpl() {
      norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
      lstm = register_module("lstm", torch::nn::LSTM(6, 5));
    }
    Tensor forward(Tensor x) { return std::get<0>(lstm(norm(x))); }
    torch::nn::LayerNorm norm{nullptr};
    torch::nn::LSTM lstm{nullptr};
  };
  torch::nn::ModuleHolder<RecurrentImpl> model(std::make_shared<RecurrentImpl>());
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor x = torch::randn({7, 2, 6});
  const Tensor original = model->forward(x);
  EXPECT_EQ(original.dtype(), low());
  EXPECT_TRUE(torch::equal(original.to(torch::kFloat), net->forward(x)));
}

TEST_P(Match, LossesRunInFloat32ForAnyInputDtype) {
  Mlp model;
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor output = torch::full({4, 3}, 300.0).to(low());  // its square leaves the range of FP16
  const Tensor loss = torch::mse_loss(output, torch::zeros({4, 3}).to(low()));
  EXPECT_EQ(loss.dtype(), torch::kFloat);
  EXPECT_EQ(loss.item<float>(), 90000.0f);
}

// As after Apex's O2 and O3, which patch no function.
TEST_P(Match, LossesStay16BitIf16BitOutputsAreRequested) {
  Mlp model;
  auto net = amp::initialize(model, GetParam(), quiet().cast_model_outputs(low()));
  const Tensor output = net->forward(features()).detach();
  ASSERT_EQ(output.dtype(), low());
  const Tensor zeros = torch::zeros_like(output), target = torch::tensor({0, 1, 2, 1});
  const Tensor mse = torch::mse_loss(output, zeros), cross_entropy = torch::cross_entropy_loss(output, target);
  EXPECT_EQ(torch::mse_loss(output, zeros.to(torch::kFloat)).dtype(), torch::kFloat) << "a mix";
  amp::reset();
  EXPECT_EQ(mse.dtype(), low());
  EXPECT_TRUE(torch::equal(mse, torch::mse_loss(output, zeros)));
  EXPECT_TRUE(torch::equal(cross_entropy, torch::cross_entropy_loss(output, target)));
}

TEST_P(Match, LossesRunInFloat32IfFloat32OutputsAreRequested) {
  Mlp model;
  auto net = amp::initialize(model, GetParam(), quiet().cast_model_outputs(torch::kFloat));
  const Tensor output = torch::full({4, 3}, 2.0).to(low());
  EXPECT_EQ(torch::mse_loss(output, torch::zeros_like(output)).dtype(), torch::kFloat);
}

TEST_P(Match, TheProgramsListsApplyWith16BitOutputs) {
  Mlp model;
  const auto own = apex::opt_levels::CastLists::from_yaml_string("match: {float32: [aten::exp]}");
  auto net = amp::initialize(model, GetParam(), quiet().cast_model_outputs(low()).casts(own));
  const Tensor output = torch::ones({4, 3}).to(low());
  EXPECT_EQ(torch::exp(output).dtype(), torch::kFloat);
  EXPECT_EQ(torch::l1_loss(output, torch::zeros_like(output)).dtype(), low());
}

TEST_P(Match, OperatorsOnOneDtypeAreNotCast) {
  Mlp model;
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor x = features();
  EXPECT_EQ(torch::mm(x, x.t()).dtype(), torch::kFloat);
  EXPECT_EQ(torch::exp(x.to(low())).dtype(), low()) << "no cast lists at this level";
}

TEST_P(Match, LossesInTheHandlesForwardStay16Bit) {
  struct LossInsideImpl : torch::nn::Module {
    LossInsideImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
    Tensor forward(Tensor x) {
      const Tensor y = fc(x);
      inner = torch::mse_loss(y, torch::zeros_like(y)).scalar_type();
      return y;
    }
    torch::nn::Linear fc{nullptr};
    at::ScalarType inner = torch::kLong;
  };
  torch::nn::ModuleHolder<LossInsideImpl> model(std::make_shared<LossInsideImpl>());
  auto net = amp::initialize(model, GetParam(), quiet());
  net->forward(features());
  EXPECT_EQ(net->inner, low()) << "Apex patches no function at this level";
}

INSTANTIATE_TEST_SUITE_P(Levels, Match, ::testing::Values("O2", "O3", "O5", "O6"), [](const auto& test) { return test.param; });

TEST_F(AmpTest, MatchKeepsFloat32BatchNormAtO2) {
  ConvNet model;
  auto net = amp::initialize(model, "O2", quiet());
  const amp::trace trace;
  model->forward(images());
  const auto norm =
      std::find_if(trace.ops().begin(), trace.ops().end(), [](const auto& op) { return op.name == "aten::batch_norm"; });
  ASSERT_NE(norm, trace.ops().end()) << trace;
  EXPECT_TRUE(norm->casts.empty());
  EXPECT_EQ(norm->inputs[0], torch::kHalf);
  EXPECT_EQ(norm->inputs[1], torch::kFloat);
}

}  // namespace
}  // namespace apex::test
