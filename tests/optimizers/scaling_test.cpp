// found_inf and grad_scale: GradScaler, capturable steps, the optimizer's master_weights option.
#include <apex_cpp/amp.h>

#include <cmath>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
namespace amp = apex::amp;

class Scaling : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, Scaling, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// Runs backward for a loss whose gradients are `scale` times fixed values.
void backward(amp::GradScaler& scaler, const std::vector<at::Tensor>& params, int64_t seed) {
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& param : params) loss = loss + (param * values(param.sizes(), seed++)).sum();
  scaler.scale(loss).backward();
}

void zero_grad(const std::vector<at::Tensor>& params) {
  for (const at::Tensor& param : params) param.mutable_grad().reset();
}

amp::GradScaler cpu_scaler() { return amp::GradScaler("cpu", /*init_scale=*/1024.0); }

// FOPT-05. The scale is a power of two: dividing by it is exact.
TEST_P(Scaling, GradScalerStepsLikeUnscaledGradients) {
  const auto params = make_params(1);
  const auto plain_params = make_params(1);
  auto optimizer = make(GetParam(), params);
  auto plain = make(GetParam(), plain_params);
  amp::GradScaler scaler = cpu_scaler();
  for (int step = 0; step < 3; ++step) {
    zero_grad(params);
    backward(scaler, params, 10 * step);
    for (size_t i = 0; i < params.size(); ++i) plain_params[i].mutable_grad() = values(params[i].sizes(), 10 * step + i);
    scaler.step(*optimizer);
    scaler.update();
    plain->step();
    EXPECT_TRUE(same_bytes(params, plain_params)) << "step " << step;
  }
}

TEST_P(Scaling, AStepSkippedByGradScalerChangesNoBit) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  amp::GradScaler scaler = cpu_scaler();
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    zero_grad(params);
    backward(scaler, params, 5);
    scaler.step(*optimizer);
    scaler.update();
    const auto before = copies_of(params);
    const std::string state = saved(*optimizer);
    const double scale = scaler.get_scale();
    zero_grad(params);
    backward(scaler, params, 6);
    params[2].grad()[129].fill_(bad);
    scaler.step(*optimizer);
    scaler.update();
    EXPECT_TRUE(same_bytes(before, copies_of(params)));
    EXPECT_EQ(state, saved(*optimizer));
    EXPECT_LT(scaler.get_scale(), scale);
  }
}

TEST_P(Scaling, AnOverflowFlagSkipsAStepOnlyIfItIsNotZero) {
  const auto params = make_params(1);
  const auto plain_params = make_params(1);
  auto optimizer = make(GetParam(), params);
  auto plain = make(GetParam(), plain_params);
  auto& flag = dynamic_cast<FusedOptimizer&>(*optimizer).found_inf;
  for (const bool found : {false, true, false}) {
    set_grads(params, 3);
    set_grads(plain_params, 3);
    flag = at::full({1}, found ? 1.0 : 0.0);
    optimizer->step();
    if (!found) plain->step();
    EXPECT_TRUE(same_bytes(params, plain_params)) << found;
  }
}

// FOPT-06
TEST(Capturable, GivesTheBitsOfAnOrdinaryStep) {
  const auto params = make_params(1);
  const auto plain_params = make_params(1);
  FusedAdam optimizer(params, FusedAdamOptions(0.01).capturable(true).weight_decay(0.1));
  FusedAdam plain(plain_params, FusedAdamOptions(0.01).weight_decay(0.1));
  for (int step = 0; step < 4; ++step) {
    const double lr = 0.01 / (step + 1);
    optimizer.param_groups()[0].options().set_lr(lr);
    plain.param_groups()[0].options().set_lr(lr);
    set_grads(params, 10 * step);
    set_grads(plain_params, 10 * step);
    optimizer.step();
    plain.step();
    EXPECT_TRUE(same_bytes(params, plain_params)) << "step " << step;
  }
  EXPECT_EQ(optimizer.steps_taken(), 4);
}

// The calls for a group's dtypes and late parameters share one step count.
TEST(Capturable, CountsOneStepForAllCallsOfAGroup) {
  auto params = make_params(1);
  params.push_back(values({9}, 3, at::kHalf).requires_grad_());
  auto plain_params = make_params(1);
  plain_params.push_back(values({9}, 3, at::kHalf).requires_grad_());
  const auto options = FusedAdamOptions(0.01).master_weights(true).capturable(true);
  FusedAdam optimizer(params, options);
  FusedAdam plain(plain_params, FusedAdamOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    set_grads(params, 10 * step);
    set_grads(plain_params, 10 * step);
    if (step == 1) {
      for (const auto* all : {&params, &plain_params}) {
        for (const auto& param : *all) param.mutable_grad().reset();
      }
    }
    optimizer.step();
    plain.step();
    EXPECT_EQ(optimizer.steps_taken(), step + 1);
  }
  for (size_t i = 0; i + 1 < params.size(); ++i) EXPECT_TRUE(same_bytes(params[i], plain_params[i]));
}

TEST(Capturable, ASkippedStepIsNotCounted) {
  const auto params = make_params(1);
  FusedAdam optimizer(params, FusedAdamOptions().capturable(true));
  set_grads(params, 2);
  optimizer.step();
  const auto before = copies_of(params);
  optimizer.found_inf = at::ones({1});
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 1);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
  optimizer.found_inf = at::zeros({1});
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 2);
}

// FOPT-07, and FusedMixedPrecisionLamb's reduced_precision_dtype: 16-bit parameters are the float32 masters, rounded once.
template <class Opt, class Options>
void expect_own_masters(const Options& with_masters, const Options& plain_options, at::ScalarType dtype) {
  const auto low = make_params(1, dtype);
  std::vector<at::Tensor> wide;
  for (const auto& param : low) wide.push_back(param.detach().to(at::kFloat).requires_grad_());
  Opt optimizer(low, with_masters);
  Opt reference(wide, plain_options);
  for (int step = 0; step < 4; ++step) {
    set_grads(low, 10 * step);
    for (size_t i = 0; i < low.size(); ++i) wide[i].mutable_grad() = low[i].grad().to(at::kFloat);
    optimizer.step();
    reference.step();
    for (size_t i = 0; i < low.size(); ++i) EXPECT_TRUE(same_bytes(low[i].detach(), wide[i].detach().to(dtype))) << i;
  }
}

TEST(MasterWeights, UpdateHalfAndBFloat16Parameters) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    expect_own_masters<FusedAdam>(FusedAdamOptions(1e-3).capturable(true).master_weights(true), FusedAdamOptions(1e-3), dtype);
    expect_own_masters<FusedMixedPrecisionLamb>(FusedMixedPrecisionLambOptions(1e-3).reduced_precision_dtype(dtype),
                                                FusedMixedPrecisionLambOptions(1e-3), dtype);
  }
}

// FOPT-12
TEST(MixedPrecisionLamb, CountsFromTheStepItIsGiven) {
  const auto params = make_params(1);
  FusedMixedPrecisionLamb optimizer(params, FusedMixedPrecisionLambOptions().step(10));
  EXPECT_EQ(optimizer.steps_taken(), 10);
  EXPECT_EQ(optimizer.steps_taken(1), 0) << "there is no such group";
  set_grads(params, 2);
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 11);
}

}  // namespace
}  // namespace test
