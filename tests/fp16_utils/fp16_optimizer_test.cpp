// FP16O-01, -02, -04, -06, -07, -08, -10: parameters and gradients under FP16_Optimizer.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>

#include <cmath>

#include "tests/amp/warnings.h"
#include "tests/errors.h"
#include "tests/fp16_utils/half_network.h"

namespace apex::test {
namespace {

class Fp16OptimizerTypes : public ::testing::TestWithParam<torch::Dtype> {};

TEST_P(Fp16OptimizerTypes, Fp16o01MastersReplaceSixteenBitParametersWithTheirState) {
  HalfNetworkForTests net(GetParam());
  net.second->bias.set_requires_grad(false);
  auto sgd = sgd_over(net.parameters());
  net.loss().backward();
  sgd.step();  // momentum in 16 bits
  FP16_Optimizer optimizer(sgd, quiet());
  const auto& params = sgd.param_groups()[0].params();
  ASSERT_EQ(optimizer.fp32_from_fp16_params().size(), 3u);
  EXPECT_TRUE(params[0].is_same(optimizer.fp32_from_fp16_params()[0]));
  EXPECT_EQ(params[0].scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(params[0], net.first->weight.to(torch::kFloat)));
  EXPECT_TRUE(params[2].is_same(net.norm->weight)) << "float32 parameters are stepped themselves";
  EXPECT_TRUE(params[5].is_same(net.second->bias)) << "frozen";
  EXPECT_EQ(&optimizer.param_groups(), &sgd.param_groups());
  const auto& state = *optimizer.state().at(params[0].unsafeGetTensorImpl());
  EXPECT_EQ(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer().scalar_type(), torch::kFloat);
}

// The masters' path is SGD in float32 on the unscaled gradients that 16-bit parameters gave.
TEST_P(Fp16OptimizerTypes, Fp16o03And04StepAsSgdOnFloat32Copies) {
  HalfNetworkForTests net(GetParam());
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(64));
  std::vector<torch::Tensor> reference;
  for (const auto& param : net.parameters()) reference.push_back(param.detach().to(torch::kFloat).clone().requires_grad_());
  auto reference_sgd = sgd_over(reference);
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    optimizer.backward(net.loss());
    const auto params = net.parameters();
    for (size_t j = 0; j < params.size(); ++j) {
      const double scale = params[j].scalar_type() == torch::kFloat ? 1 : 64;
      reference[j].mutable_grad() = params[j].grad().to(torch::kFloat) / scale;
    }
    optimizer.step();
    reference_sgd.step();
    for (size_t j = 0; j < params.size(); ++j) {
      EXPECT_TRUE(torch::equal(sgd.param_groups()[0].params()[j], reference[j])) << i << " " << j;
      EXPECT_TRUE(torch::equal(params[j], reference[j].to(params[j].scalar_type()))) << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Fp16OptimizerTypes, ::testing::Values(torch::kHalf, torch::kBFloat16),
                         [](const auto& test) { return test.param == torch::kHalf ? "float16" : "bfloat16"; });

TEST(Fp16Optimizer, Fp16o01RejectsOtherDtypesAndChangesNothing) {
  HalfNetworkForTests net;
  auto params = net.parameters();
  params.push_back(torch::ones({2}, torch::kDouble).requires_grad_());
  auto sgd = sgd_over(params);
  EXPECT_THROW(FP16_Optimizer(sgd, quiet()), c10::TypeError);
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(params[0]));
  EXPECT_THROW(FP16_Optimizer(sgd, quiet().static_loss_scale(0)), c10::ValueError);
  EXPECT_THROW(FP16_Optimizer(sgd, quiet().dynamic_loss_scale(true).dynamic_loss_args(DynamicLossArgs().scale_factor(3))),
               c10::ValueError);
}

// Each of them would have a master of its own.
TEST(Fp16Optimizer, Fp16o01RejectsParametersThatSetDataTies) {
  HalfNetworkForTests net;
  const auto twin = torch::zeros({4, 5}, torch::kHalf).requires_grad_();
  torch::Tensor(twin).set_data(net.first->weight.detach());
  auto sgd = sgd_over({net.first->weight, twin});
  expect_error<c10::ValueError>([&] { FP16_Optimizer(sgd, quiet()); }, {"parameter 1 of group 0", "shares its memory"});
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(net.first->weight));
  auto later = sgd_over({net.first->weight});
  FP16_Optimizer optimizer(later, quiet());
  later.param_groups()[0].params().push_back(twin);
  expect_error<c10::ValueError>([&] { optimizer.backward(net.loss()); }, {"parameter 1 of group 0", "shares its memory"});
}

// Its train() and eval() would move the masters alone.
TEST(Fp16Optimizer, RejectsAnOptimizerWithModesAndChangesNothing) {
  HalfNetworkForTests net;
  optimizers::FusedScheduleFreeAdamW schedule_free(net.parameters());
  expect_error([&] { FP16_Optimizer(schedule_free, quiet()); }, {"train() and eval()", "amp::initialize"});
  EXPECT_TRUE(schedule_free.param_groups()[0].params()[0].is_same(net.first->weight));
  torch::nn::Linear in_float32(4, 4);  // has no masters
  optimizers::FusedScheduleFreeAdamW followed(in_float32->parameters());
  FP16_Optimizer optimizer(followed, quiet());
  EXPECT_TRUE(followed.param_groups()[0].params()[0].is_same(in_float32->weight));
}

TEST(Fp16Optimizer, Fp16o01PrintsEveryParameterIfVerbose) {
  HalfNetworkForTests net;
  net.first->bias.set_requires_grad(false);
  auto sgd = sgd_over(net.parameters());
  ::testing::internal::CaptureStdout();
  FP16_Optimizer(sgd, 128.0);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("Half parameter of shape [4, 5]: gets a float32 master"), std::string::npos) << text;
  EXPECT_NE(text.find("Half parameter of shape [4]: frozen"), std::string::npos) << text;
  EXPECT_NE(text.find("Float parameter of shape [4]: stepped as it is"), std::string::npos) << text;
}

TEST(Fp16Optimizer, Fp16o01ATiedParameterIsListedOnceWithOneMaster) {
  HalfNetworkForTests net;
  const auto weight = net.first->weight;
  auto sgd = sgd_over({weight});
  sgd.param_groups()[0].params().push_back(weight);
  FP16_Optimizer optimizer(sgd, quiet());
  EXPECT_EQ(optimizer.fp32_from_fp16_params().size(), 1u);
  ASSERT_EQ(sgd.param_groups()[0].params().size(), 1u);
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(optimizer.fp32_from_fp16_params()[0]));
}

TEST(Fp16Optimizer, Fp16o02TheScaleIsStaticOrDynamicAsRequested) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  EXPECT_EQ(FP16_Optimizer(sgd, 128.0, false, {}, false).loss_scale(), 128.0);
  EXPECT_EQ(FP16_Optimizer(sgd, 128.0, true, {}, false).loss_scale(), 65536.0);
  const auto args = DynamicLossArgs().init_scale(1024).scale_window(7).max_loss_scale(512);
  FP16_Optimizer optimizer(sgd, quiet().dynamic_loss_scale(true).dynamic_loss_args(args));
  EXPECT_EQ(optimizer.loss_scale(), 512.0);
  EXPECT_EQ(optimizer.loss_scaler().scale_window(), 7);
  optimizer.set_loss_scale(64);
  EXPECT_EQ(optimizer.loss_scale(), 64.0);
  EXPECT_THROW(optimizer.set_loss_scale(-1), c10::ValueError);
}

TEST(Fp16Optimizer, Fp16o04GradientsAreOverwrittenNotAddedTo) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(8));
  optimizer.backward(net.loss());
  const auto once = optimizer.fp32_from_fp16_params()[0].grad().clone();
  for (auto& param : optimizer.fp16_params()) param.mutable_grad().reset();
  optimizer.backward(net.loss());
  EXPECT_TRUE(torch::equal(optimizer.fp32_from_fp16_params()[0].grad(), once));
}

// A scale that float16 cannot hold.
TEST(Fp16Optimizer, Fp16o04TheLossIsScaledInFloat32) {
  auto weight = torch::ones({4}, torch::kHalf).requires_grad_();
  auto sgd = sgd_over({weight});
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(0x1p17));
  optimizer.backward((weight.to(torch::kFloat) * 0x1p-12).sum());
  EXPECT_TRUE(torch::equal(optimizer.fp32_from_fp16_params()[0].grad(), torch::full({4}, 0x1p-12)));
}

TEST(Fp16Optimizer, Fp16o04SeveralPassesAccumulateInTheModel) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(8));
  optimizer.backward(net.loss(), /*update_master_grads=*/false);
  EXPECT_FALSE(optimizer.fp32_from_fp16_params()[0].grad().defined());
  const auto once = net.first->weight.grad().to(torch::kFloat) / 8;
  optimizer.backward(net.loss(), /*update_master_grads=*/false);
  optimizer.update_master_grads();
  EXPECT_TRUE(torch::equal(optimizer.fp32_from_fp16_params()[0].grad(), 2 * once));  // a doubled float16 is exact
}

// A master whose parameter got no gradient this time would be stepped with the one of the last iteration.
TEST(Fp16Optimizer, Fp16o04AParameterWithoutGradientLeavesItsMasterWithoutOne) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet());
  optimizer.backward(net.loss());
  net.first->weight.mutable_grad().reset();
  optimizer.update_master_grads();
  EXPECT_FALSE(optimizer.fp32_from_fp16_params()[0].grad().defined());
}

TEST(Fp16Optimizer, Fp16o07And08AParameterWithoutGradientIsShownWithoutOne) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(8));
  optimizer.backward(net.loss(), /*update_master_grads=*/false);
  const auto bias = net.norm->bias.grad().clone();
  net.norm->weight.mutable_grad().reset();  // float32, stepped itself
  net.first->weight.mutable_grad().reset();
  optimizer.update_master_grads();
  const auto shown = optimizer.inspect_master_grad_data()->at(0);
  ASSERT_EQ(shown.size(), 6u);
  EXPECT_FALSE(shown[0].defined());
  EXPECT_FALSE(shown[2].defined());
  EXPECT_TRUE(torch::equal(shown[3], bias / 8));
}

TEST(Fp16Optimizer, Fp16o06ZeroGradReachesMastersAndModel) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet());
  optimizer.backward(net.loss());
  optimizer.zero_grad();
  for (const auto& param : net.parameters()) EXPECT_FALSE(param.grad().any().item<bool>());
  for (const auto& param : sgd.param_groups()[0].params()) EXPECT_FALSE(param.grad().any().item<bool>());
  optimizer.zero_grad(/*set_grads_to_None=*/true);
  for (const auto& param : net.parameters()) EXPECT_FALSE(param.grad().defined());
  for (const auto& param : sgd.param_groups()[0].params()) EXPECT_FALSE(param.grad().defined());
}

TEST(Fp16Optimizer, Fp16o07And08ClipAndShowTheGradientsThatAreStepped) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, dynamic(256));
  optimizer.backward(net.loss());
  const auto shown = optimizer.inspect_master_grad_data();
  ASSERT_TRUE(shown.has_value());
  double squares = 0;
  for (const auto& grad : shown->at(0)) squares += grad.to(torch::kDouble).square().sum().item<double>();
  // Float32 norms of up to 20 values, and the norm of these six norms: 26 roundings of 2^-24 in sums, which the roots halve,
  // and two of the roots.
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(optimizer.clip_master_grads(1e-3), norm, 1e-6 * norm);
  // Two such norms, and three roundings of the coefficient and of a product. The 1e-6 in its denominator takes 1e-6 / norm.
  EXPECT_NEAR(optimizer.clip_master_grads(1e-3), 1e-3, 1e-3 * (2.2e-6 + 1e-6 / norm));

  optimizer.backward(net.loss() * INFINITY);
  EXPECT_EQ(optimizer.clip_master_grads(1.0), -1.0);
  const CaughtWarnings caught;
  EXPECT_FALSE(optimizer.inspect_master_grad_data().has_value());
  EXPECT_NE(caught.text.find("overflow"), std::string::npos);
}

TEST(Fp16Optimizer, GradientsThatDoNotFitAreAnErrorAndChangeNothing) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet());
  optimizer.backward(net.loss(), /*update_master_grads=*/false);
  for (const auto& wrong :
       {torch::ones({2, 4}, torch::kHalf).to_sparse(), torch::ones({4}, torch::kHalf), torch::ones({2, 4}, torch::kLong)}) {
    net.second->weight.mutable_grad() = wrong;
    EXPECT_THROW(optimizer.update_master_grads(), c10::Error);
    EXPECT_FALSE(optimizer.fp32_from_fp16_params()[0].grad().defined());
  }
}

// CHK-03, CHK-04, and the other way round.
TEST(Fp16Optimizer, Chk03And04AmpRejectsIt) {
  HalfNetworkForTests net;
  auto sgd = sgd_over(net.parameters());
  FP16_Optimizer optimizer(sgd, quiet());
  torch::nn::Linear model(2, 2);
  EXPECT_THROW((void)amp::initialize(model, optimizer, "O1"), c10::Error);
  EXPECT_THROW((void)amp::initialize(model, optimizer), c10::Error);
  std::vector<FP16_Optimizer*> list = {&optimizer};
  EXPECT_THROW((void)amp::initialize(model, list, "O1"), c10::Error);
  auto other = sgd_over(model->parameters());
  EXPECT_THROW((void)amp::initialize(model, std::tie(other, optimizer), "O1"), c10::Error);
  EXPECT_TRUE(other.param_groups()[0].params()[0].is_same(model->weight)) << "nothing was changed";

  auto [amped, handle] = amp::initialize(model, other, "O1", amp::InitializeOptions().verbosity(0));
  EXPECT_THROW(FP16_Optimizer(handle, quiet()), c10::Error);
  expect_error([&] { FP16_Optimizer(other, quiet()); },
               {"FP16_Optimizer was given the optimizer that was passed to amp::initialize"});
  amp::reset();
}

}  // namespace
}  // namespace apex::test
