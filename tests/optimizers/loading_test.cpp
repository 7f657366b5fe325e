// torch::load into an optimizer with other parameters than the saved one, or after further steps.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
using torch::optim::OptimizerParamGroup;

class Loading : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, Loading, ::testing::ValuesIn(optimizer_classes()), name_of_class);

void train(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int steps, int64_t seed = 3) {
  for (int step = 0; step < steps; ++step) {
    set_grads(params, seed + 10 * step);
    optimizer.step();
  }
}

std::vector<at::Tensor> channels_last(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> same;
  for (const at::Tensor& param : params) {
    const auto format = param.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    same.push_back(param.detach().clone().contiguous(format).requires_grad_());
  }
  return same;
}

// Results differ slightly, because the norms of LAMB and NovoGrad are summed in memory order: after three steps by 9e-7 at
// most, as layouts_test.cpp derives.
void expect_same_steps(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 0, 1e-6)) << i;
}

// The buffer is 1 when it is saved; the expected values follow the same recurrence in float64. Values below 1 are rounded by
// 2^-25 = 3e-8: the buffer is off by 3e-8 a step, which moves the parameter by 1e-3 * 3e-8 * 1000^2 / 2 = 1.5e-5 in all, and
// its own roundings by 3e-5.
TEST(LoadingOverFloat32, KeepsSmallGradientsThatFloat16WouldLose) {
  const at::Tensor half = at::ones({1}, at::kHalf).requires_grad_(), param = at::zeros({1}).requires_grad_();
  const auto options = FusedSGDOptions(1e-3).momentum(0.999);
  FusedSGD saver(std::vector<at::Tensor>{half}, options), loader(std::vector<at::Tensor>{param}, options);
  half.mutable_grad() = at::ones({1}, at::kHalf);
  saver.step();
  load(loader, saved(saver));
  double momentum = 1, expected = 0;
  for (int step = 0; step < 1000; ++step) {
    param.mutable_grad() = at::full({1}, 8e-4);
    loader.step();
    momentum = 0.999 * momentum + 8e-4;
    expected -= 1e-3 * momentum;
  }
  EXPECT_NEAR(param.item<double>(), expected, 1e-4);
}

template <class Opt, class State>
at::ScalarType dtype_after_load(at::Tensor State::*member, at::ScalarType from, at::ScalarType to) {
  const auto params = make_params(1, from), here = make_params(1, to);
  Opt saver(params, {0.1}), loader(here, {0.1});
  train(saver, params, 1);
  load(loader, saved(saver));
  return (static_cast<const State&>(*loader.state().at(here[0].unsafeGetTensorImpl())).*member).scalar_type();
}

TEST(LoadedDtypes, AreTheParametersDtypeOrFloat32) {
  for (const auto& [from, to] : {std::pair(at::kHalf, at::kFloat), std::pair(at::kFloat, at::kBFloat16)}) {
    EXPECT_EQ((dtype_after_load<FusedSGD>(&FusedSGDParamState::momentum_buffer, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedAdagrad>(&FusedAdagradParamState::sum, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedLARS>(&FusedLARSParamState::momentum_buffer, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedLion>(&FusedLionParamState::exp_avg, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedNovoGrad>(&FusedNovoGradParamState::exp_avg, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedLAMB>(&FusedLAMBParamState::exp_avg_sq, from, to)), to);
    EXPECT_EQ((dtype_after_load<FusedAdam>(&FusedAdamParamState::exp_avg, from, to)), at::kFloat);
    EXPECT_EQ((dtype_after_load<FusedMixedPrecisionLamb>(&FusedMixedPrecisionLambParamState::exp_avg, from, to)), at::kFloat);
  }
}

TEST_P(Loading, ResumesWithOtherStrides) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  train(*optimizer, params, 2);
  const auto here = channels_last(params);
  auto resumed = make(GetParam(), here);
  load(*resumed, saved(*optimizer));
  train(*optimizer, params, 2, 100);
  train(*resumed, here, 2, 100);
  expect_same_steps(params, here);
}

TEST_P(Loading, RejectsStateOfAnotherShapeAndChangesNothing) {
  const auto params = make_params(1);
  auto saver = make(GetParam(), {params[1], params[0]});
  train(*saver, {params[1], params[0]}, 1);
  const at::Tensor turned = values({5, 33}, 7).requires_grad_();
  auto loader = make(GetParam(), {params[1], turned});
  loader->param_groups()[0].options().set_lr(0.125);
  const std::string before = saved(*loader);
  const std::string message = message_of([&] { load(*loader, saved(*saver)); });
  EXPECT_NE(message.find("Parameter 1 of group 0, of shape [5, 33], has a saved '"), std::string::npos) << message;
  EXPECT_NE(message.find("of shape [33, 5]"), std::string::npos) << message;
  EXPECT_EQ(saved(*loader), before);
}

TEST_P(Loading, FewerParametersInALaterGroupDoesNotChangeTheFirst) {
  const auto params = make_params(1);
  auto saver = make(GetParam(), {params[0]}), loader = make(GetParam(), {params[0]});
  saver->add_param_group(OptimizerParamGroup({params[1]}));
  loader->add_param_group(OptimizerParamGroup({params[1], params[2]}));
  train(*saver, params, 1);
  loader->param_groups()[0].options().set_lr(0.125);
  const std::string before = saved(*loader);
  EXPECT_THROW(load(*loader, saved(*saver)), c10::Error);
  EXPECT_EQ(saved(*loader), before);
}

// Loading the initial state in the same process removes everything that later steps left.
TEST_P(Loading, RollsBackToBeforeTheFirstStep) {
  const auto params = make_params(1), fresh_params = make_params(1);
  auto optimizer = make(GetParam(), params), fresh = make(GetParam(), fresh_params);
  const std::string at_start = saved(*optimizer);
  train(*optimizer, params, 3, 50);
  for (size_t i = 0; i < params.size(); ++i) params[i].detach().copy_(fresh_params[i].detach());
  load(*optimizer, at_start);
  EXPECT_TRUE(optimizer->state().empty());
  train(*optimizer, params, 2);
  train(*fresh, fresh_params, 2);
  EXPECT_TRUE(same_bytes(params, fresh_params));
}

TEST(LoadingMixedPrecisionLamb, CountsFromTheOptionAgain) {
  const auto params = make_params(1);
  FusedMixedPrecisionLamb optimizer(params, FusedMixedPrecisionLambOptions(0.1).step(5));
  const std::string at_start = saved(optimizer);
  EXPECT_EQ(optimizer.steps_taken(), 5);
  train(optimizer, params, 3);
  EXPECT_EQ(optimizer.steps_taken(), 8);
  load(optimizer, at_start);
  EXPECT_EQ(optimizer.steps_taken(), 5);
  train(optimizer, params, 1);
  EXPECT_EQ(optimizer.steps_taken(), 6);
}

// All options of FusedLAMB are among those of FusedMixedPrecisionLamb, whose masters it would drop.
TEST(LoadingIntoLamb, RejectsAFileOfMixedPrecisionLamb) {
  const auto params = make_params(1);
  FusedMixedPrecisionLamb saver(params);
  FusedLAMB loader(params);
  const std::string message = message_of([&] { load(loader, saved(saver)); });
  EXPECT_NE(message.find("has the option 'step'"), std::string::npos) << message;
}

// As in Apex, which reads it from the constructor's defaults.
TEST(LoadingIntoLamb, LeavesTheOptimizersOwnMaxGradNorm_FOPT_08) {
  const auto params = make_params(1), same_params = make_params(1);
  const auto options = FusedLAMBOptions(0.1).max_grad_norm(1e3);
  FusedLAMB saver(make_params(1), FusedLAMBOptions(0.1).max_grad_norm(1e-3));
  FusedLAMB loader(params, options), same(same_params, options);
  load(loader, saved(saver));
  EXPECT_EQ(static_cast<FusedLAMBOptions&>(loader.param_groups()[0].options()).max_grad_norm(), 1e-3);
  train(loader, params, 2);
  train(same, same_params, 2);
  EXPECT_TRUE(same_bytes(params, same_params));
}

}  // namespace
}  // namespace test
