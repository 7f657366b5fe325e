// Options of groups: they must have the optimizer's options class, and accept the same values.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
using torch::optim::OptimizerParamGroup;

template <class Options>
OptimizerParamGroup group_with(const Options& options) {
  return OptimizerParamGroup({values({3}, 1).requires_grad_()}, std::make_unique<Options>(options));
}

// The constructor's error for the second of two groups. add_param_group must give the same error and change nothing.
template <class Opt, class Error, class Options>
std::string refusal(const Options& options) {
  const Groups groups = {group_with(typename OptionsOf<Opt>::type(0.1)), group_with(options)};
  const std::string message = message_of<Error>([&] { Opt optimizer(groups, {0.1}); });
  Opt optimizer({groups[0]}, {0.1});
  EXPECT_EQ(message_of<Error>([&] { optimizer.add_param_group(groups[1]); }), message);
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  return message;
}

class EveryClassesGroups : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, EveryClassesGroups, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// Through torch::optim::Optimizer, whose add_param_group is not virtual, a group is first seen by the step.
TEST_P(EveryClassesGroups, RejectOptionsOfAnotherClassAndChangeNothing) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->add_param_group(OptimizerParamGroup({values({3}, 1).requires_grad_()}));
  optimizer->param_groups()[1].set_options(std::make_unique<torch::optim::AdamOptions>(0.1));
  set_grads(params, 2);
  const auto before = copies_of(params);
  const std::string message = message_of<c10::TypeError>([&] { optimizer->step(); });
  EXPECT_NE(message.find("Group 1 of " + GetParam().name + " has options of the class torch::optim::AdamOptions. Give it " +
                         GetParam().name + "Options"),
            std::string::npos)
      << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

TEST_P(EveryClassesGroups, RejectReplacementOptionsOfAnotherClass) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  optimizer->step();
  optimizer->param_groups()[0].set_options(std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THROW(optimizer->step(), c10::TypeError);
}

TEST_P(EveryClassesGroups, RejectAParameterPutIntoASecondGroup) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  OptimizerParamGroup group({values({3}, 1).requires_grad_()});
  group.set_options(optimizer->param_groups()[0].options().clone());
  optimizer->add_param_group(group);
  set_grads(params, 2);
  optimizer->step();
  optimizer->param_groups()[1].params()[0] = params[0];
  EXPECT_THROW(optimizer->step(), c10::ValueError);
}

// As a cosine's end leaves it; other tensors in the group are no other group.
TEST_P(EveryClassesGroups, KeepTheSchedulersRateWhenTensorsChange) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->param_groups()[0].options().set_lr(-1e-20);
  const torch::Tensor other = params[0].detach().clone().requires_grad_();
  optimizer->param_groups()[0].params()[0] = other;
  EXPECT_NO_THROW(optimizer->step());
}

// Schedulers may move a rate where they like.
TEST_P(EveryClassesGroups, AcceptAnyLearningRateLater) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->param_groups()[0].options().set_lr(-1e-20);
  set_grads(params, 2);
  optimizer->step();
  const std::string bytes = saved(*optimizer);
  load(*optimizer, bytes);
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), -1e-20);
}

TEST(GroupOptions, OfAnotherClassAreTypeErrors) {
  const std::string message = refusal<FusedAdam, c10::TypeError>(torch::optim::AdamOptions(0.1));
  EXPECT_NE(message.find("Group 1 of FusedAdam has options of the class torch::optim::AdamOptions"), std::string::npos)
      << message;
  EXPECT_FALSE((refusal<FusedLAMB, c10::TypeError>(FusedMixedPrecisionLambOptions(0.1)).empty()));
}

TEST(GroupOptions, AcceptTheOptimizersValidValues) {
  using Value = c10::ValueError;
  EXPECT_NE((refusal<FusedAdam, Value>(FusedAdamOptions(-0.5))).find("Group 1 of FusedAdam: lr must not be negative, got -0.5"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdam, Value>(FusedAdamOptions().betas({1.0, 0.9}))).find("betas must be in [0, 1)"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdam, c10::Error>(FusedAdamOptions().amsgrad(true))).find("AMSGrad"), std::string::npos);
  EXPECT_NE((refusal<FusedSGD, Value>(FusedSGDOptions(0.1).momentum(0.9).dampening(0.5).nesterov(true))).find("nesterov"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdagrad, Value>(FusedAdagradOptions().eps(-1))).find("eps"), std::string::npos);
  EXPECT_NE((refusal<FusedLion, Value>(FusedLionOptions().betas({0.9, -1}))).find("Group 1 of FusedLion: betas"),
            std::string::npos);
  EXPECT_NE((refusal<FusedNovoGrad, Value>(FusedNovoGradOptions().weight_decay(-1))).find("weight_decay"), std::string::npos);
  EXPECT_NE((refusal<FusedMixedPrecisionLamb, Value>(FusedMixedPrecisionLambOptions().step(-1))).find("step"),
            std::string::npos);
}

}  // namespace
}  // namespace test
