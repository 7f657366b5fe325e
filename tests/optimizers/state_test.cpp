// Saving, loading, moving, and schedulers.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

class State : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, State, ::testing::ValuesIn(optimizer_classes()), name_of_class);

void step_with_new_grads(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int step) {
  set_grads(params, 10 * step);
  optimizer.step();
}

TEST_P(State, ResumesBitwise) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto params = make_params(1, dtype);
    auto optimizer = make(GetParam(), params);
    for (int step = 0; step < 3; ++step) step_with_new_grads(*optimizer, params, step);
    const std::string bytes = saved(*optimizer);
    std::vector<at::Tensor> resumed_params;
    for (const auto& param : params) resumed_params.push_back(param.detach().clone().requires_grad_());
    auto resumed = make(GetParam(), resumed_params);
    load(*resumed, bytes);
    for (int step = 3; step < 6; ++step) {
      step_with_new_grads(*optimizer, params, step);
      step_with_new_grads(*resumed, resumed_params, step);
      ASSERT_TRUE(same_bytes(params, resumed_params)) << dtype << ", step " << step;
    }
  }
}

TEST_P(State, LoadsOptionsOfEachGroup) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), {params[0]});
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({params[1]}));
  optimizer->param_groups()[1].options().set_lr(0.125);
  const std::string bytes = saved(*optimizer);
  auto other = make(GetParam(), {params[0]});
  other->add_param_group(torch::optim::OptimizerParamGroup({params[1]}));
  load(*other, bytes);
  EXPECT_EQ(other->param_groups()[1].options().get_lr(), 0.125);
  EXPECT_EQ(other->param_groups()[0].options().get_lr(), optimizer->param_groups()[0].options().get_lr());
}

TEST(StateOfAnotherClass, IsAnError) {
  const auto params = make_params(1);
  torch::optim::Adam adam(params);
  FusedNovoGrad novograd(params);
  EXPECT_THROW(load(novograd, saved(adam)), c10::Error);
}

TEST(Options, SurviveSavingTheWholeOptimizer) {
  const auto params = make_params(1);
  const auto options = FusedMixedPrecisionLambOptions(0.3)
                           .step(4)
                           .bias_correction(false)
                           .betas({0.5, 0.6})
                           .eps(1e-4)
                           .weight_decay(0.2)
                           .adam_w_mode(false)
                           .grad_averaging(false)
                           .max_grad_norm(7)
                           .use_nvlamb(true)
                           .reduced_precision_dtype(at::kBFloat16)
                           .set_grad_none(false)
                           .materialize_master_grads(false);
  FusedMixedPrecisionLamb optimizer(params, options);
  FusedMixedPrecisionLamb other(params);
  load(other, saved(optimizer));
  EXPECT_TRUE(static_cast<const FusedMixedPrecisionLambOptions&>(other.param_groups()[0].options()) == options);
}

TEST_P(State, SchedulersChangeTheLearningRate) {
  const auto params = make_params(1);
  const auto fixed_params = make_params(1);
  auto optimizer = make(GetParam(), params);
  auto fixed = make(GetParam(), fixed_params);
  torch::optim::StepLR scheduler(*optimizer, /*step_size=*/1, /*gamma=*/0.5);
  const double rate = optimizer->param_groups()[0].options().get_lr();
  scheduler.step();  // the first call only counts, the second changes the rate
  scheduler.step();
  fixed->param_groups()[0].options().set_lr(rate * 0.5);
  step_with_new_grads(*optimizer, params, 1);
  step_with_new_grads(*fixed, fixed_params, 1);
  EXPECT_TRUE(same_bytes(params, fixed_params));
  EXPECT_FALSE(same_bytes(params, make_params(1)));
}

TEST(Moving, KeepsStateAndStepCount) {
  const auto params = make_params(1);
  const auto expected_params = make_params(1);
  FusedAdam original(params);
  FusedAdam expected(expected_params);
  step_with_new_grads(original, params, 1);
  step_with_new_grads(expected, expected_params, 1);
  FusedAdam moved(std::move(original));
  step_with_new_grads(moved, params, 2);
  step_with_new_grads(expected, expected_params, 2);
  EXPECT_EQ(moved.steps_taken(), 2);
  EXPECT_TRUE(same_bytes(params, expected_params));
}

template <class ParamState>
const ParamState& state_of(const torch::optim::Optimizer& optimizer, void* key) {
  return static_cast<const ParamState&>(*optimizer.state().at(key));
}

// A program may put an empty state under a parameter.
template <class ParamState, class Opt>
void expect_start_at_zeros(Opt& optimizer, const std::vector<at::Tensor>& params, Opt& fresh,
                           const std::vector<at::Tensor>& fresh_params) {
  for (const at::Tensor& param : params) optimizer.state()[param.unsafeGetTensorImpl()] = std::make_unique<ParamState>();
  for (int step = 0; step < 2; ++step) {
    step_with_new_grads(optimizer, params, step);
    step_with_new_grads(fresh, fresh_params, step);
  }
  EXPECT_TRUE(same_bytes(params, fresh_params));
}

TEST(EmptyStates, StartAtZeros) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const auto lamb_params = make_params(1, dtype), fresh_lamb_params = make_params(1, dtype);
    FusedLAMB lamb(lamb_params), fresh_lamb(fresh_lamb_params);
    expect_start_at_zeros<FusedLAMBParamState>(lamb, lamb_params, fresh_lamb, fresh_lamb_params);
    const auto mixed_params = make_params(1, dtype), fresh_mixed_params = make_params(1, dtype);
    const auto options = FusedMixedPrecisionLambOptions(0.1).reduced_precision_dtype(at::kHalf);
    FusedMixedPrecisionLamb mixed(mixed_params, options), fresh_mixed(fresh_mixed_params, options);
    expect_start_at_zeros<FusedMixedPrecisionLambParamState>(mixed, mixed_params, fresh_mixed, fresh_mixed_params);
    const auto averaged_params = make_params(1, dtype), fresh_averaged_params = make_params(1, dtype);
    FusedScheduleFreeAdamW averaged(averaged_params, {0.05}), fresh_averaged(fresh_averaged_params, {0.05});
    averaged.train();
    fresh_averaged.train();
    expect_start_at_zeros<FusedScheduleFreeAdamWParamState>(averaged, averaged_params, fresh_averaged, fresh_averaged_params);
    for (const at::Tensor& param : averaged_params) {
      const at::Tensor& squares = state_of<FusedScheduleFreeAdamWParamState>(averaged, param.unsafeGetTensorImpl()).exp_avg_sq;
      EXPECT_EQ(squares.scalar_type(), at::kFloat);
    }
  }
}

// FOPT-03
TEST(StateDtypes, AreApexs) {
  const auto params = make_params(1, at::kHalf);
  FusedAdam adam(params);
  FusedSGD sgd(params, FusedSGDOptions(0.1).momentum(0.9));
  FusedAdagrad adagrad(params);
  FusedLion lion(params);
  FusedLAMB lamb(params);
  set_grads(params, 2);
  for (torch::optim::Optimizer* optimizer : std::vector<torch::optim::Optimizer*>{&adam, &sgd, &adagrad, &lion, &lamb}) {
    optimizer->step();
  }
  void* const key = params[0].unsafeGetTensorImpl();
  EXPECT_EQ(state_of<FusedAdamParamState>(adam, key).exp_avg.scalar_type(), at::kFloat);
  EXPECT_EQ(state_of<FusedAdamParamState>(adam, key).exp_avg_sq.scalar_type(), at::kFloat);
  EXPECT_EQ(state_of<FusedSGDParamState>(sgd, key).momentum_buffer.scalar_type(), at::kHalf);
  EXPECT_EQ(state_of<FusedAdagradParamState>(adagrad, key).sum.scalar_type(), at::kHalf);
  EXPECT_EQ(state_of<FusedLionParamState>(lion, key).exp_avg.scalar_type(), at::kHalf);
  EXPECT_EQ(state_of<FusedLAMBParamState>(lamb, key).exp_avg_sq.scalar_type(), at::kHalf);
}

}  // namespace
}  // namespace test
