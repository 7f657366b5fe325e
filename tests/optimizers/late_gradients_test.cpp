// Parameters that have a gradient only in some steps.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

class LateGradients : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, LateGradients, ::testing::ValuesIn(optimizer_classes()), name_of_class);

TEST_P(LateGradients, AParameterWithoutGradientKeepsEveryBit) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  params[2].mutable_grad().reset();
  optimizer->step();
  const auto at_start = make_params(1);
  EXPECT_TRUE(same_bytes(params[2], at_start[2]));
  EXPECT_FALSE(same_bytes(params[0], at_start[0]));
  EXPECT_EQ(optimizer->state().count(params[2].unsafeGetTensorImpl()), 0u);
}

// FOPT-09, FOPT-11: a parameter that joins late starts with its own first gradient, however many steps the others have made.
// Step counts and LAMB's global norm are shared, so only classes without either can be compared with a separate optimizer.
// Parameter 1 joins in step 2. `check(step, together, early, late)` checks more than the parameters.
template <class Opt, class Options, class Check>
void expect_late_start(const Options& options, const Check& check) {
  const auto params = make_params(1);
  Opt together(params, options);
  const auto alone_params = make_params(1);
  Opt early({alone_params[0], alone_params[2], alone_params[3]}, options);
  Opt late(std::vector<at::Tensor>{alone_params[1]}, options);
  for (int step = 0; step < 4; ++step) {
    set_grads(params, 10 * step);
    set_grads(alone_params, 10 * step);
    if (step < 2) params[1].mutable_grad().reset();
    together.step();
    early.step();
    if (step >= 2) late.step();
    EXPECT_TRUE(same_bytes(params, alone_params)) << "step " << step;
    check(step, together, early, late);
  }
}

TEST(LateGradientsOfSgd, StartTheirMomentumAtTheirFirstGradient) {
  expect_late_start<FusedSGD>(FusedSGDOptions(0.1).momentum(0.9).dampening(0.3), [](auto&&...) {});
}

TEST(LateGradientsOfLars, StartTheirMomentumAtTheirFirstGradient) {
  expect_late_start<FusedLARS>(FusedLARSOptions(0.1).momentum(0.9).trust_coefficient(0.5), [](auto&&...) {});
}

TEST(LateGradientsOfNovoGrad, StartTheirNormAtTheirFirstGradient) {
  // without bias correction the count of steps does not enter
  expect_late_start<FusedNovoGrad>(
      FusedNovoGradOptions(0.1).bias_correction(false),
      [](int step, const FusedNovoGrad& together, const FusedNovoGrad& early, const FusedNovoGrad& late) {
        const at::Tensor norms = together.exp_avg_sq();
        EXPECT_EQ(norms[1].item<float>(), step < 2 ? 0.0f : late.exp_avg_sq()[0].item<float>());
        EXPECT_EQ(norms[3].item<float>(), early.exp_avg_sq()[2].item<float>());
      });
}

// FOPT-02: the step count belongs to the group, and increases whichever parameters have gradients.
TEST(StepCount, IsPerGroup) {
  const auto params = make_params(1);
  FusedAdam optimizer(std::vector<at::Tensor>{params[0], params[1]});
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({params[2]}));
  EXPECT_EQ(optimizer.steps_taken(0), 0);
  set_grads(params, 2);
  params[1].mutable_grad().reset();
  params[2].mutable_grad().reset();
  optimizer.step();
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(0), 2);
  EXPECT_EQ(optimizer.steps_taken(1), 2);
}

TEST_P(LateGradients, AGroupMayBeAddedAfterTheFirstStep) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), {params[0], params[1], params[2]});
  set_grads(params, 2);
  optimizer->step();
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({params[3]}));
  optimizer->step();
  EXPECT_FALSE(same_bytes(params[3], make_params(1)[3]));
}

// A gradient's memory order may differ from its parameter's: expanded or channels-last.
TEST_P(LateGradients, MayHaveAnyLayout) {
  const auto params = make_params(1);
  const auto same = make_params(1);
  auto optimizer = make(GetParam(), params);
  auto expected = make(GetParam(), same);
  set_grads(params, 2);
  params[0].mutable_grad() = at::full({1}, 0.25f).expand({33, 5});
  params[3].mutable_grad() = params[3].grad().contiguous(at::MemoryFormat::ChannelsLast);
  for (size_t i = 0; i < params.size(); ++i) same[i].mutable_grad() = params[i].grad().contiguous().clone();
  optimizer->step();
  expected->step();
  EXPECT_TRUE(same_bytes(params, same));
}

}  // namespace
}  // namespace test
