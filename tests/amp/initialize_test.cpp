// INIT-*, PRINT-*: the call itself.
#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

/// Has its weights itself, without layers.
struct OwnWeightsImpl : torch::nn::Module {
  OwnWeightsImpl() {
    for (const char* name : {"w1", "w2", "w3"}) weights.push_back(register_parameter(name, torch::ones({16, 16})));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& weight : weights) x = torch::matmul(x, weight);
    return x;
  }
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(OwnWeights);

class Initialize : public AmpTest {
 protected:
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), 0.1};
};

TEST_F(Initialize, SetsTheLevelsPropertiesAndScalers) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().num_losses(3));
  EXPECT_EQ(amp::properties().opt_level, "O2");
  EXPECT_EQ(amp::properties().cast_model_type, torch::kHalf);
  EXPECT_EQ(amp::properties().keep_batchnorm_fp32, true);
  EXPECT_EQ(amp::properties().master_weights, true);
  EXPECT_EQ(amp::num_loss_scalers(), 3);
  EXPECT_TRUE(amp::loss_scaler(2).dynamic());
}

TEST_F(Initialize, Init08OptionsOverrideYamlWhichOverridesTheLevel) {
  const auto level = amp::OptLevel::from_yaml_string("opt_level: O2\nloss_scale: 64\nnum_losses: 2\n");
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(32.0));
  EXPECT_EQ(amp::loss_scaler(0).loss_scale(), 32.0);
  EXPECT_EQ(amp::num_loss_scalers(), 2);
}

TEST_F(Initialize, Print01PrintsTheLevelTwiceAndNothingAtVerbosity0) {  // INIT-06, INIT-09
  ::testing::internal::CaptureStdout();
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().loss_scale(128.0));
  const auto text = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(contains(text, "O2"));
  EXPECT_TRUE(contains(text, "  loss_scale             : dynamic"));
  EXPECT_TRUE(contains(text, "  loss_scale             : 128"));
  Mlp other;
  ::testing::internal::CaptureStdout();
  auto silent = amp::initialize(other, "O2", quiet());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(Initialize, Init04CudnnMustBeEnabled) {
  at::globalContext().setUserEnabledCuDNN(false);
  const auto error = message_of([&] { (void)amp::initialize(model, optimizer, "O2", quiet()); });
  at::globalContext().setUserEnabledCuDNN(true);
  EXPECT_TRUE(contains(error, "cuDNN"));
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
}

TEST_F(Initialize, Bug08ASecondCallCreatesItsOwnScalers) {  // INIT-11
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  auto& first = amp::loss_scaler();
  first.restore(4.0, 1);
  Mlp other;
  torch::optim::SGD sgd(other->parameters(), 0.1);
  auto [net2, opt2] = amp::initialize(other, sgd, "O2", quiet());
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 65536.0);
  train_step(net, opt, features());
  EXPECT_EQ(amp::step_result(opt).loss_scale, 4.0) << "the first handle keeps its own";
}

TEST_F(Initialize, Init13MinAndMaxBoundTheLossScale) {
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().min_loss_scale(4096.0).max_loss_scale(8192.0));
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 8192.0);
  for (int i = 0; i < 3; ++i) {
    { amp::scale_loss(net->forward(features()).sum() * INFINITY, opt).backward(); }
    opt.step();
  }
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 4096.0);
}

// initialize itself chooses parameters of such a model, and prints their names.
TEST_F(Initialize, Bfloat16ModulesMayNameTheModelsOwnWeights) {
  OwnWeights own;
  const std::vector<std::string> names{"w2"};
  const auto refused = message_of([&] { (void)amp::initialize(own, "O6", quiet().float32_modules(names)); });
  EXPECT_TRUE(contains(refused, "found no module 'w2'"));
  EXPECT_EQ(message_of([&] { (void)amp::initialize(own, "O6", quiet().bfloat16_modules(names)); }), "");
}

/// What O2 promises: training follows FP32, while the model is half the size.
TEST_F(Initialize, TrainsTowardsTheFloat32Result) {
  Mlp reference;
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().size(); ++i) reference->parameters()[i].copy_(model->parameters()[i]);
  }
  torch::optim::SGD plain(reference->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  torch::Tensor loss, expected;
  for (int i = 0; i < 30; ++i) {
    opt.zero_grad();
    loss = net->forward(features()).square().mean();
    { amp::scale_loss(loss, opt).backward(); }
    opt.step();
    plain.zero_grad();
    expected = reference->forward(features()).square().mean();
    expected.backward();
    plain.step();
  }
  // Thirty steps of half-precision forward passes (relative error 2^-11 each) on a contracting problem.
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 30 * expected.item<double>() / 2048);
  EXPECT_LT(expected.item<double>(), 0.1);
}

}  // namespace
}  // namespace apex::test
