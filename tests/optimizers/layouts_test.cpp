// A parameter whose strides change between steps: its state and its master change too.
#include <apex_cpp/amp.h>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;

void make_channels_last(const at::Tensor& param) {
  if (param.dim() == 4) param.set_data(param.detach().contiguous(at::MemoryFormat::ChannelsLast));
}

class Layouts : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, Layouts, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// Results differ slightly, because the norms of LAMB and NovoGrad are summed in memory order. In FP32, the norms are within 2.5
// units of 2^-24 (kernels/multi_tensor.h), and an update, below 0.2, has six of them at most. A parameter below 2 is rounded by
// one unit, which may go the other way. After three steps that is 3 * (0.2 * 15 + 2) * 2^-24 = 9e-7.
void expect_same_steps(const std::vector<at::Tensor>& params, torch::optim::Optimizer& optimizer,
                       const std::vector<at::Tensor>& contiguous, torch::optim::Optimizer& expected, double tolerance) {
  for (int step = 0; step < 3; ++step) {
    set_grads(params, 10 * step);
    set_grads(contiguous, 10 * step);
    optimizer.step();
    expected.step();
    make_channels_last(params[3]);
  }
  EXPECT_TRUE(params[3].is_contiguous(at::MemoryFormat::ChannelsLast));
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::allclose(params[i], contiguous[i], tolerance, tolerance)) << i;
}

TEST_P(Layouts, ChangeBetweenSteps) {
  const auto params = make_params(1), contiguous = make_params(1);
  expect_same_steps(params, *make(GetParam(), params), contiguous, *make(GetParam(), contiguous), 1e-6);
}

// Autograd gives them for the imaginary parts of complex numbers.
TEST_P(Layouts, OfNegatedGradientsHaveTheirSign) {
  const auto params = make_params(1), plain = make_params(1);
  const auto optimizer = make(GetParam(), params), expected = make(GetParam(), plain);
  set_grads(plain, 2);
  for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = at::_neg_view(plain[i].grad().neg());
  optimizer->step();
  expected->step();
  EXPECT_TRUE(same_bytes(params, plain));
}

// 2^-10: the spacing of float16 parameters.
template <class Opt, class Options>
void expect_own_masters_follow(const Options& options) {
  const auto params = make_params(1, at::kHalf), contiguous = make_params(1, at::kHalf);
  Opt optimizer(params, options), expected(contiguous, options);
  expect_same_steps(params, optimizer, contiguous, expected, 0x1p-10);
}

TEST(LayoutsWithMasterWeights, ChangeBetweenSteps) {
  using namespace apex::optimizers;
  expect_own_masters_follow<FusedAdam>(FusedAdamOptions(0.05).capturable(true).master_weights(true));
  expect_own_masters_follow<FusedMixedPrecisionLamb>(FusedMixedPrecisionLambOptions(0.05).reduced_precision_dtype(at::kHalf));
}

// The weights after three steps. `change` may change the layout of the convolution's weight after the first step.
std::vector<at::Tensor> trained(OptimizerPtr (*make)(std::vector<at::Tensor>), const std::string& level,
                                const std::function<void(const at::Tensor&)>& change) {
  nn::Conv2d conv(nn::Conv2dOptions(3, 4, 3));
  const at::NoGradGuard no_grad;
  for (auto& param : conv->parameters()) param.copy_(values(param.sizes(), 5));
  OptimizerPtr optimizer = make(conv->parameters());
  auto [model, handle] = amp::initialize(conv, optimizer, level, amp::InitializeOptions().verbosity(0));
  for (int step = 0; step < 3; ++step) {
    const at::AutoGradMode with_gradients(true);
    handle->zero_grad();
    const at::Tensor loss = model->forward(values({2, 3, 8, 8}, 60 + step)).to(at::kFloat).square().mean();
    {
      auto scaled_loss = amp::scale_loss(loss, *handle);
      scaled_loss.backward();
    }
    handle->step();
    if (step == 0) change(conv->weight);
  }
  std::vector<at::Tensor> params;
  for (const at::Tensor& param : conv->parameters()) params.push_back(param.detach().to(at::kFloat).contiguous());
  return params;
}

template <class Opt, class Options>
OptimizerPtr make_with(std::vector<at::Tensor> params) {
  return std::make_unique<Opt>(std::move(params), Options(0.05));
}

OptimizerPtr make_fused_order(std::vector<at::Tensor> params) {
  using namespace apex::optimizers;
  return std::make_unique<FusedSGD>(std::move(params), FusedSGDOptions(0.05).momentum(0.9).materialize_master_grads(false));
}

// Convolutions in another layout have another order of sums, of float32 products at O0, and of float16 factors, 2^-11 each, at
// O1 and O2. At O5 a bound of 2^-7 is the spacing of bfloat16 weights.
void expect_same_training(OptimizerPtr (*make)(std::vector<at::Tensor>), const std::function<void(const at::Tensor&)>& change) {
  for (const std::string level : {"O0", "O1", "O2", "O5"}) {
    const double bound = level == "O0" ? 1e-5 : level == "O5" ? 0x1p-7 : 0x1p-9;
    const auto unchanged = trained(make, level, [](const at::Tensor&) {}), changed = trained(make, level, change);
    for (size_t i = 0; i < changed.size(); ++i) {
      EXPECT_TRUE(at::allclose(changed[i], unchanged[i], bound, bound)) << level << ", parameter " << i;
    }
  }
}

TEST(LayoutsUnderAmp, ChangeBetweenStepsOfTorchOptimizers) {
  expect_same_training(make_with<torch::optim::SGD, torch::optim::SGDOptions>, make_channels_last);
}

TEST(LayoutsUnderAmp, ChangeBetweenStepsOfFusedOptimizers) {
  expect_same_training(make_with<apex::optimizers::FusedAdam, apex::optimizers::FusedAdamOptions>, make_channels_last);
  expect_same_training(make_fused_order, make_channels_last);
}

// Torch's optimizers accept parameters with gaps between elements, and so do the copies from masters to parameters.
TEST(LayoutsUnderAmp, MayHaveGapsWithTorchsOptimizers) {
  expect_same_training(make_with<torch::optim::SGD, torch::optim::SGDOptions>, [](const at::Tensor& param) {
    param.set_data(param.detach().repeat({1, 1, 1, 2}).narrow(3, 0, param.size(3)));
  });
}

}  // namespace
}  // namespace test
