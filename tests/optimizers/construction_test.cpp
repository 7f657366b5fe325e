// Defaults and errors of the constructors.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

TEST(Defaults, AreApexs) {
  EXPECT_TRUE(FusedSGDOptions(0.1) == FusedSGDOptions(0.1)
                                          .momentum(0)
                                          .dampening(0)
                                          .weight_decay(0)
                                          .nesterov(false)
                                          .wd_after_momentum(false)
                                          .materialize_master_grads(true)
                                          .set_grad_none(false));
  EXPECT_TRUE(FusedAdamOptions() == FusedAdamOptions(1e-3)
                                        .bias_correction(true)
                                        .betas({0.9, 0.999})
                                        .eps(1e-8)
                                        .adam_w_mode(true)
                                        .weight_decay(0)
                                        .amsgrad(false)
                                        .set_grad_none(true)
                                        .capturable(false)
                                        .master_weights(false)
                                        .materialize_master_grads(true));
  EXPECT_TRUE(FusedLAMBOptions() == FusedLAMBOptions(1e-3)
                                        .bias_correction(true)
                                        .betas({0.9, 0.999})
                                        .eps(1e-6)
                                        .weight_decay(0.01)
                                        .amsgrad(false)
                                        .adam_w_mode(true)
                                        .grad_averaging(true)
                                        .set_grad_none(true)
                                        .max_grad_norm(1.0)
                                        .use_nvlamb(false));
  EXPECT_TRUE(FusedNovoGradOptions() == FusedNovoGradOptions(1e-3)
                                            .bias_correction(true)
                                            .betas({0.9, 0.999})
                                            .eps(1e-8)
                                            .weight_decay(0)
                                            .amsgrad(false)
                                            .reg_inside_moment(false)
                                            .grad_averaging(true)
                                            .norm_type(2)
                                            .init_zero(false)
                                            .set_grad_none(true));
  EXPECT_TRUE(FusedAdagradOptions() ==
              FusedAdagradOptions(1e-2).eps(1e-10).weight_decay(0).set_grad_none(true).adagrad_w_mode(false));
  // Those of Apex on ROCm.
  EXPECT_TRUE(FusedLARSOptions(0.1) == FusedLARSOptions(0.1)
                                           .momentum(0)
                                           .weight_decay(0)
                                           .trust_coefficient(0.001)
                                           .eps(0)
                                           .nesterov(false)
                                           .is_skipped(false)
                                           .materialize_master_grads(true)
                                           .set_grad_none(false));
  // The paper's, as Apex has no Lion.
  EXPECT_TRUE(FusedLionOptions() ==
              FusedLionOptions(1e-4).betas({0.9, 0.99}).weight_decay(0).set_grad_none(true).materialize_master_grads(true));
  EXPECT_TRUE(FusedMixedPrecisionLambOptions() == FusedMixedPrecisionLambOptions(1e-3)
                                                      .step(0)
                                                      .bias_correction(true)
                                                      .betas({0.9, 0.999})
                                                      .eps(1e-6)
                                                      .weight_decay(0.01)
                                                      .amsgrad(false)
                                                      .adam_w_mode(true)
                                                      .grad_averaging(true)
                                                      .max_grad_norm(1.0)
                                                      .use_nvlamb(false)
                                                      .reduced_precision_dtype(std::nullopt));
  EXPECT_FALSE(FusedAdamOptions() == FusedAdamOptions().eps(1e-7));
}

template <class Opt, class Options>
std::function<void()> construct(const Options& options) {
  return [options] { Opt(make_params(1), options); };
}

TEST(Rejections, RuntimeErrorsAreApexs) {
  EXPECT_NE(message_of(construct<FusedAdam>(FusedAdamOptions().amsgrad(true))).find("AMSGrad"), std::string::npos);
  EXPECT_NE(message_of(construct<FusedLAMB>(FusedLAMBOptions().amsgrad(true))).find("AMSGrad"), std::string::npos);
  EXPECT_NE(message_of(construct<FusedNovoGrad>(FusedNovoGradOptions().amsgrad(true))).find("AMSGrad"), std::string::npos);
  EXPECT_NE(message_of(construct<FusedMixedPrecisionLamb>(FusedMixedPrecisionLambOptions().amsgrad(true))).find("AMSGrad"),
            std::string::npos);
  EXPECT_NE(message_of(construct<FusedAdam>(FusedAdamOptions().master_weights(true))).find("capturable"), std::string::npos);
}

TEST(Rejections, BadNumbersAreValueErrors) {
  EXPECT_THROW(construct<FusedSGD>(FusedSGDOptions(-1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedSGD>(FusedSGDOptions(0.1).momentum(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedSGD>(FusedSGDOptions(0.1).weight_decay(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedSGD>(FusedSGDOptions(0.1).nesterov(true))(), c10::ValueError);
  EXPECT_THROW(construct<FusedSGD>(FusedSGDOptions(0.1).nesterov(true).momentum(0.9).dampening(0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedAdam>(FusedAdamOptions().betas({0.9, 1.0}))(), c10::ValueError);
  EXPECT_THROW(construct<FusedAdam>(FusedAdamOptions().betas({-0.1, 0.9}))(), c10::ValueError);
  EXPECT_THROW(construct<FusedAdagrad>(FusedAdagradOptions().eps(-1e-8))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLARS>(FusedLARSOptions(-1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLARS>(FusedLARSOptions(0.1).momentum(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLARS>(FusedLARSOptions(0.1).weight_decay(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLARS>(FusedLARSOptions(0.1).trust_coefficient(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLARS>(FusedLARSOptions(0.1).eps(-0.1))(), c10::ValueError);
  EXPECT_NE(
      message_of(construct<FusedLARS>(FusedLARSOptions(0.1).nesterov(true))).find("nesterov needs a momentum above 0, got 0"),
      std::string::npos);
  EXPECT_THROW(construct<FusedLion>(FusedLionOptions(-1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLion>(FusedLionOptions().weight_decay(-0.1))(), c10::ValueError);
  EXPECT_THROW(construct<FusedLion>(FusedLionOptions().betas({1.0, 0.9}))(), c10::ValueError);
  EXPECT_NE(message_of(construct<FusedLion>(FusedLionOptions().betas({0.9, 1}))).find("betas must be in [0, 1), got (0.9, 1)"),
            std::string::npos);
  EXPECT_NE(message_of(construct<FusedSGD>(FusedSGDOptions(-1))).find("lr must not be negative, got -1"), std::string::npos);
}

// FOPT-11: an invalid norm type is an error of the first step, which changes nothing.
TEST(Rejections, NovoGradsNormTypeIsAnErrorOfTheFirstStep) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer(params, FusedNovoGradOptions().norm_type(1));
  set_grads(params, 2);
  const auto before = copies_of(params);
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("norm_type is 1"), std::string::npos);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

// FOPT-12
TEST(Rejections, MixedPrecisionLambTakesOneDtypePerGroup) {
  auto params = make_params(1);
  params.push_back(values({3}, 9, at::kHalf).requires_grad_());
  FusedMixedPrecisionLamb optimizer(params);
  set_grads(params, 2);
  const auto before = copies_of(params);
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("parameter 4 of group 0 is Half"), std::string::npos);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
  params[4].mutable_grad().reset();  // frozen, like 16-bit parameters that have masters under amp
  optimizer.step();
  EXPECT_TRUE(params[4].equal(before[4]));
  EXPECT_FALSE(params[0].equal(before[0]));
  EXPECT_THROW(FusedMixedPrecisionLamb(make_params(1), FusedMixedPrecisionLambOptions().reduced_precision_dtype(at::kFloat)),
               c10::Error);
}

class EveryClass : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, EveryClass, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// FOPT-04: no dtype is passed over in silence.
TEST_P(EveryClass, RejectsDoubleByPositionAndChangesNothing) {
  auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({values({3}, 9, at::kDouble).requires_grad_()}));
  params.push_back(optimizer->param_groups()[1].params()[0]);
  set_grads(params, 2);
  const auto before = copies_of(params);
  const std::string message = message_of([&] { optimizer->step(); });
  EXPECT_NE(message.find("Parameter 0 of group 1"), std::string::npos) << message;
  EXPECT_NE(message.find("Double"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

// FOPT-01
TEST_P(EveryClass, RejectsSparseGradientsAndChangesNothing) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  params[2].mutable_grad() = params[2].grad().to_sparse();
  const auto before = copies_of(params);
  EXPECT_NE(message_of([&] { optimizer->step(); }).find("Parameter 2 of group 0"), std::string::npos);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

TEST_P(EveryClass, EmptyGroupsAreAccepted) {
  auto optimizer = make(GetParam(), {});
  optimizer->step();
  EXPECT_EQ(optimizer->param_groups().size(), 1u);
}

// As in Apex. A capturable optimizer finds no device there.
TEST(EmptyGroups, CountNoStep) {
  for (const bool capturable : {false, true}) {
    FusedAdam optimizer(std::vector<at::Tensor>{}, FusedAdamOptions(0.1).capturable(capturable));
    optimizer.step();
    optimizer.update_device_lr();
    EXPECT_EQ(optimizer.steps_taken(), 0) << capturable;
  }
}

// FOPT-01
TEST_P(EveryClass, EvaluatesTheClosureOnceWithGradientsAndReturnsItsValue) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  int calls = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer->step([&] {
    ++calls;
    at::Tensor sum = at::zeros({});
    for (const auto& param : params) sum = sum + param.square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(loss.requires_grad());
  EXPECT_FALSE(same_bytes(params, make_params(1)));
}

TEST(ZeroGrad, FollowsSetGradNoneByDefault) {
  const auto params = make_params(1);
  FusedSGD keeps(params, FusedSGDOptions(0.1));
  FusedAdam drops(params);
  set_grads(params, 2);
  keeps.zero_grad();
  ASSERT_TRUE(params[0].grad().defined());
  EXPECT_EQ(params[0].grad().abs().sum().item<double>(), 0.0);
  drops.zero_grad();
  EXPECT_FALSE(params[0].grad().defined());
  set_grads(params, 2);
  keeps.zero_grad(true);
  EXPECT_FALSE(params[0].grad().defined());
}

}  // namespace
}  // namespace test
