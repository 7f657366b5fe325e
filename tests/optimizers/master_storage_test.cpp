// master_storage: masters of bfloat16 parameters that every class stores as remainders, against float32 masters.
#include <apex_cpp/amp.h>

#include <cmath>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
using namespace apex::optimizers;

constexpr MasterStorage kRemainders[] = {MasterStorage::remainder16, MasterStorage::remainder8};

TEST(MasterStorage, HasNames) {
  for (const auto storage :
       {MasterStorage::float32, MasterStorage::remainder16, MasterStorage::remainder8, MasterStorage::stochastic}) {
    EXPECT_EQ(master_storage_named(name_of(storage)), storage);
  }
  EXPECT_NE(message_of<c10::ValueError>([] { (void)master_storage_named("remainder4"); }).find("'remainder4'"),
            std::string::npos);
}

struct StoringClass {
  std::string name;
  std::function<OptimizerPtr(std::vector<at::Tensor> params, MasterStorage storage)> make;
};

template <class Opt, class Options>
StoringClass storing(const std::string& name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> params, MasterStorage storage) -> OptimizerPtr {
            Options chosen = options;
            return ready_to_train<Opt>(std::move(params), chosen.master_storage(storage));
          }};
}

class Storing : public ::testing::TestWithParam<StoringClass> {
 protected:
  OptimizerPtr make(const std::vector<at::Tensor>& params, MasterStorage storage) const {
    return GetParam().make(params, storage);
  }
};

const std::vector<StoringClass> kStoringClasses = {
    storing<FusedSGD>("FusedSGD", FusedSGDOptions(0.01).momentum(0.9).weight_decay(0.01)),
    storing<FusedAdam>("FusedAdam", FusedAdamOptions(0.01).weight_decay(0.01)),
    storing<FusedAdagrad>("FusedAdagrad", FusedAdagradOptions(0.01).weight_decay(0.01)),
    storing<FusedLion>("FusedLion", FusedLionOptions(0.01).weight_decay(0.01)),
    storing<FusedLAMB>("FusedLAMB", FusedLAMBOptions(0.01).weight_decay(0.01)),
    storing<FusedLARS>("FusedLARS", FusedLARSOptions(0.01).momentum(0.9).weight_decay(0.01).trust_coefficient(0.1)),
    storing<FusedScheduleFreeAdamW>("FusedScheduleFreeAdamW", FusedScheduleFreeAdamWOptions(0.01).weight_decay(0.01)),
    storing<FusedNovoGrad>("FusedNovoGrad", FusedNovoGradOptions(0.01).weight_decay(0.01))};

INSTANTIATE_TEST_SUITE_P(Classes, Storing, ::testing::ValuesIn(kStoringClasses),
                         [](const auto& test) { return test.param.name; });

at::Tensor kept_master(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  return dynamic_cast<FusedOptimizer&>(optimizer).kept_master_of(param);
}

std::vector<at::Tensor> kept_masters(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> masters;
  for (const at::Tensor& param : params) masters.push_back(kept_master(optimizer, param));
  return masters;
}

// Gives both lists the same gradients, which bfloat16 can hold.
void set_same_grads(const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& exact, int64_t seed) {
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor grad = values(params[i].sizes(), seed++, at::kBFloat16);
    params[i].mutable_grad() = grad.to(params[i].scalar_type());
    exact[i].mutable_grad() = grad.to(at::kFloat);
  }
}

std::vector<at::Tensor> float32_copies(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& param : params)
    copies.push_back(param.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
  return copies;
}

TEST_P(Storing, RemaindersOfSixteenBitsHaveTheBitsOfFloat32MastersForAThousandSteps) {
  const auto params = make_params(1, at::kBFloat16), exact = float32_copies(params);
  const auto optimizer = make(params, MasterStorage::remainder16), reference = make(exact, MasterStorage::float32);
  for (int64_t step = 0; step < 1000; ++step) {
    set_same_grads(params, exact, 10 * step);
    optimizer->step();
    reference->step();
    ASSERT_TRUE(same_bytes(kept_masters(*optimizer, params), exact)) << "step " << step;
  }
  for (size_t i = 0; i < params.size(); ++i) {
    EXPECT_EQ(params[i].scalar_type(), at::kBFloat16);
    // Half a unit in the last place of a bfloat16 is 2^-9 of the power of two above the value.
    EXPECT_TRUE((params[i] - exact[i]).abs().le(exact[i].abs() * 0x1p-8).all().item<bool>());
  }
}

// Each step rounds a master to 16 significant bits: by 2^-17 of it at most, besides what an earlier difference has become.
TEST_P(Storing, RemaindersOfEightBitsStayNearFloat32Masters) {
  const auto params = make_params(1, at::kBFloat16), exact = float32_copies(params);
  const auto optimizer = make(params, MasterStorage::remainder8), reference = make(exact, MasterStorage::float32);
  constexpr int kSteps = 20;
  for (int64_t step = 0; step < kSteps; ++step) {
    set_same_grads(params, exact, 10 * step);
    optimizer->step();
    reference->step();
  }
  const auto masters = kept_masters(*optimizer, params);
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor bound = exact[i].abs().max() * 0x1p-16 * kSteps;
    EXPECT_TRUE((masters[i] - exact[i]).abs().le(bound).all().item<bool>());
    EXPECT_FALSE(same_bytes(masters[i], exact[i]) && exact[i].numel() > 1) << "nothing was rounded";
  }
}

TEST_P(Storing, AStepSkippedByGradScalerChangesNoBit) {
  for (const MasterStorage storage : kRemainders) {
    const auto params = make_params(1, at::kBFloat16);
    const auto optimizer = make(params, storage);
    amp::GradScaler scaler("cpu", /*init_scale=*/1024.0);
    for (int step = 0; step < 2; ++step) {
      at::Tensor loss = at::zeros({});
      for (const at::Tensor& param : params) loss = loss + (param.to(at::kFloat) * (step == 1 ? INFINITY : 0.5f)).sum();
      for (const at::Tensor& param : params) param.mutable_grad().reset();
      const auto before = copies_of(params);
      const std::string state = saved(*optimizer);
      scaler.scale(loss).backward();
      scaler.step(*optimizer);
      scaler.update();
      EXPECT_EQ(same_bytes(params, before), step == 1);
      EXPECT_EQ(saved(*optimizer) == state, step == 1);
    }
  }
}

TEST_P(Storing, SavedStateContinuesWithTheSameBits) {
  for (const MasterStorage storage : kRemainders) {
    const auto params = make_params(1, at::kBFloat16);
    const auto optimizer = make(params, storage);
    const auto run = [&](const std::vector<at::Tensor>& on, torch::optim::Optimizer& by, int64_t begin, int64_t end) {
      for (int64_t step = begin; step < end; ++step) {
        set_grads(on, 10 * step);
        by.step();
      }
    };
    run(params, *optimizer, 0, 3);
    std::vector<at::Tensor> resumed_params;
    for (const at::Tensor& param : params) resumed_params.push_back(param.detach().clone().requires_grad_());
    const auto resumed = make(resumed_params, storage);
    load(*resumed, saved(*optimizer));
    EXPECT_TRUE(same_bytes(kept_masters(*resumed, resumed_params), kept_masters(*optimizer, params)));
    run(params, *optimizer, 3, 6);
    run(resumed_params, *resumed, 3, 6);
    EXPECT_TRUE(same_bytes(kept_masters(*resumed, resumed_params), kept_masters(*optimizer, params)));
  }
}

TEST_P(Storing, StateOfTheOtherRemainderIsConverted) {
  const auto params = make_params(1, at::kBFloat16);
  const auto wide = make(params, MasterStorage::remainder16), narrow = make(params, MasterStorage::remainder8);
  set_grads(params, 1);
  wide->step();
  const auto masters = kept_masters(*wide, params);
  load(*narrow, saved(*wide));
  const auto rounded = kept_masters(*narrow, params);
  load(*wide, saved(*narrow));
  EXPECT_TRUE(same_bytes(kept_masters(*wide, params), rounded));
  for (size_t i = 0; i < params.size(); ++i) {
    // The remainder loses 8 bits: half of 2^-15 of the power of two below, and at the upper end of its range a whole step.
    EXPECT_TRUE((masters[i] - rounded[i]).abs().le(masters[i].abs() * 0x1p-15).all().item<bool>());
  }
}

TEST_P(Storing, FloatSixteenParametersAreAnError) {
  const auto params = make_params(1, at::kHalf);
  const auto optimizer = make(params, MasterStorage::remainder16);
  set_grads(params, 1);
  const auto before = copies_of(params);
  const std::string text = message_of<c10::Error>([&] { optimizer->step(); });
  EXPECT_NE(text.find("Parameter 0 of group 0"), std::string::npos) << text;
  EXPECT_NE(text.find("remainder16"), std::string::npos) << text;
  EXPECT_TRUE(same_bytes(params, before));
}

TEST_P(Storing, StateWithRemaindersDoesNotFitFloat32Masters) {
  const auto params = make_params(1, at::kBFloat16);
  const auto from = make(params, MasterStorage::remainder16), to = make(params, MasterStorage::float32);
  set_grads(params, 1);
  from->step();
  const std::string text = message_of<c10::Error>([&] { load(*to, saved(*from)); });
  EXPECT_NE(text.find("amp::save_checkpoint, which fits any"), std::string::npos) << text;
  EXPECT_TRUE(to->state().empty());
}

// Float32 parameters have no masters, and one optimizer may have both.
TEST_P(Storing, Float32ParametersTakeTheirUsualStep) {
  auto params = make_params(1, at::kBFloat16);
  const auto native = make_params(50);
  params.insert(params.end(), native.begin(), native.end());
  const auto exact = float32_copies(params);
  const std::vector<at::Tensor> expected(exact.end() - static_cast<std::ptrdiff_t>(native.size()), exact.end());
  const auto optimizer = make(params, MasterStorage::remainder16), reference = make(exact, MasterStorage::float32);
  for (int64_t step = 0; step < 3; ++step) {
    set_same_grads(params, exact, 10 * step);
    optimizer->step();
    reference->step();
    EXPECT_TRUE(same_bytes(native, expected));
  }
  EXPECT_FALSE(kept_master(*optimizer, native[0]).defined());
}

// It makes float32 masters of its own.
TEST(MasterStorage, OfFusedMixedPrecisionLambIsAnError) {
  const auto mixed = [] {
    FusedMixedPrecisionLamb(make_params(1), FusedMixedPrecisionLambOptions(0.1).master_storage(MasterStorage::remainder16));
  };
  const std::string text = message_of<c10::ValueError>(mixed);
  EXPECT_NE(text.find("does not support master_storage remainder16"), std::string::npos) << text;
  EXPECT_NE(text.find("take FusedLAMB"), std::string::npos) << text;
}

TEST(MasterStorage, OfLambLeavesGradientsUnchanged) {
  const auto params = make_params(1, at::kBFloat16);
  FusedLAMB optimizer(params, FusedLAMBOptions(0.1).master_storage(MasterStorage::remainder16));
  set_grads(params, 1);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& param : params) grads.push_back(param.grad().clone());
  optimizer.step();
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(same_bytes(params[i].grad(), grads[i]));
}

// Without masters a step of 0.001 is lost if it is rounded to nearest: bfloat16 numbers from 1 to 2 are 2^-7 apart. Rounded at
// random it stays on average. Each rounding has a variance of at most (2^-7)^2 / 4, and roundings are independent of each
// other: the mean over n elements after k steps is within 6 standard deviations, 6 * 2^-8 * sqrt(k / n), of the mean with
// float32.
TEST(MasterStorage, StochasticLosesNothingOnAverage) {
  constexpr int64_t kElements = 4096;
  constexpr int kSteps = 100;
  const at::Tensor start = (at::rand({kElements}) * 0.5 + 1.25).to(at::kBFloat16);
  const auto mean_after = [&](at::ScalarType dtype, MasterStorage storage) {
    const at::Tensor param = start.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    FusedAdam optimizer({param}, FusedAdamOptions(0.001).master_storage(storage));
    for (int step = 0; step < kSteps; ++step) {
      param.mutable_grad() = (values({kElements}, step).abs() + 0.5).to(dtype);
      optimizer.step();
    }
    return param.detach().to(at::kDouble).mean().item<double>();
  };
  const double begin = start.to(at::kDouble).mean().item<double>(), exact = mean_after(at::kFloat, MasterStorage::float32);
  EXPECT_LT(exact, begin - 0.05);
  EXPECT_EQ(mean_after(at::kBFloat16, MasterStorage::float32), begin);
  const double bound = 6 * 0x1p-8 * std::sqrt(static_cast<double>(kSteps) / kElements);
  EXPECT_NEAR(mean_after(at::kBFloat16, MasterStorage::stochastic), exact, bound);
}

TEST(MasterStorage, StochasticRepeatsItsBitsAndContinuesFromSavedState) {
  for (const MomentStorage moments : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    const auto options = FusedAdamOptions(0.01).master_storage(MasterStorage::stochastic).moment_storage(moments);
    const auto params = make_params(1, at::kBFloat16);
    FusedAdam optimizer(params, options);
    const auto run = [](const std::vector<at::Tensor>& on, FusedAdam& by, int64_t begin, int64_t end) {
      for (int64_t step = begin; step < end; ++step) {
        set_grads(on, 10 * step);
        by.step();
      }
    };
    run(params, optimizer, 0, 3);
    const auto resumed_params = copies_of(params);
    for (const at::Tensor& param : resumed_params) param.requires_grad_();
    FusedAdam resumed(resumed_params, options);
    load(resumed, saved(optimizer));
    run(params, optimizer, 3, 6);
    run(resumed_params, resumed, 3, 6);
    EXPECT_TRUE(same_bytes(resumed_params, params)) << name_of(moments);
    for (const at::Tensor& param : params) EXPECT_TRUE(same_bytes(optimizer.kept_master_of(param), param.to(at::kFloat)));
  }
}

TEST(MasterStorage, StochasticIsForFusedAdam) {
  for (const StoringClass& each : kStoringClasses) {
    if (each.name == "FusedAdam") continue;
    const std::string text = message_of<c10::ValueError>([&] { each.make(make_params(1), MasterStorage::stochastic); });
    EXPECT_NE(text.find(each.name + " does not support master_storage stochastic"), std::string::npos) << text;
  }
}

TEST(MasterStorage, AnOptimizerLoadsNoMasterOfAnother) {
  for (const MasterStorage storage : {MasterStorage::remainder16, MasterStorage::stochastic}) {
    FusedAdam optimizer(make_params(1, at::kBFloat16), FusedAdamOptions(0.1).master_storage(storage));
    const at::Tensor other = at::ones({3}, at::kBFloat16);
    EXPECT_FALSE(optimizer.load_kept_master(other, at::full({3}, 2.0f)));
    EXPECT_TRUE(same_bytes(other, at::ones({3}, at::kBFloat16)));
  }
}

// The option is the optimizer's, not the file's.
TEST(MasterStorage, OfOptionsStaysWhenStateIsLoaded) {
  const auto params = make_params(1, at::kBFloat16);
  FusedAdam wide(params, FusedAdamOptions(0.1).master_storage(MasterStorage::remainder16));
  FusedAdam narrow(params, FusedAdamOptions(0.2).master_storage(MasterStorage::remainder8));
  load(narrow, saved(wide));
  const auto& options = static_cast<FusedAdamOptions&>(narrow.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.1);
  EXPECT_EQ(options.master_storage(), MasterStorage::remainder8);
}

TEST(MasterStorage, TakesOverMastersOfMasterWeights) {
  const auto params = make_params(1, at::kBFloat16);
  FusedAdam before(params, FusedAdamOptions(0.1).capturable(true).master_weights(true));
  set_grads(params, 1);
  before.step();
  std::vector<at::Tensor> masters;
  for (const at::Tensor& param : params) {
    masters.push_back(static_cast<FusedAdamParamState&>(*before.state().at(param.unsafeGetTensorImpl())).master_param);
  }
  FusedAdam after(params, FusedAdamOptions(0.1).master_storage(MasterStorage::remainder16));
  load(after, saved(before));
  EXPECT_TRUE(same_bytes(kept_masters(after, params), masters));
}

// The parameters of such masters are rounded to even, and not away from zero as those of remainders. What a remainder cannot
// hold is cut off: 2^-8 of a unit of the bfloat16 with 8 bits, besides half of that for rounding to 24 bits.
TEST(MasterStorage, TakesOverMastersBesideParametersThatWereRoundedToEven) {
  const at::Tensor masters = at::cat({at::arange(0x3f800000, 0x3f800000 + 0x40000, 7).to(at::kInt).view(at::kFloat),
                                      at::full({1}, 0x3f808000, at::kInt).view(at::kFloat)});
  for (const MasterStorage storage : kRemainders) {
    const at::Tensor param = masters.to(at::kBFloat16).requires_grad_();
    FusedAdam before({param}, FusedAdamOptions(0.1).capturable(true).master_weights(true));
    param.mutable_grad() = at::zeros_like(param);
    before.step();
    static_cast<FusedAdamParamState&>(*before.state().at(param.unsafeGetTensorImpl())).master_param.copy_(masters);
    FusedAdam after({param}, FusedAdamOptions(0.1).master_storage(storage));
    load(after, saved(before));
    const double unit = storage == MasterStorage::remainder16 ? 0x1p-23 : 1.5 * 0x1p-15;
    EXPECT_LE((kept_master(after, param) - masters).abs().max().item<double>(), unit) << name_of(storage);
  }
}

TEST(MasterStorage, StochasticWithMasterWeightsIsAnError) {
  const auto both = FusedAdamOptions(0.1).capturable(true).master_weights(true).master_storage(MasterStorage::stochastic);
  const std::string text = message_of<c10::ValueError>([&] { FusedAdam(make_params(1, at::kBFloat16), both); });
  EXPECT_NE(text.find("Leave one of them out"), std::string::npos) << text;
}

// A master that no step updates would be saved again, and taken for new by the next optimizer.
TEST(MasterStorage, LoadingDropsMastersOfLambThatItHasNoUseFor) {
  const auto params = make_params(1, at::kHalf);
  FusedMixedPrecisionLamb before(params, FusedMixedPrecisionLambOptions(0.1).reduced_precision_dtype(at::kHalf));
  set_grads(params, 1);
  before.step();
  FusedMixedPrecisionLamb after(params, FusedMixedPrecisionLambOptions(0.1));
  load(after, saved(before));
  for (const at::Tensor& param : params) {
    const auto& state = *after.state().at(param.unsafeGetTensorImpl());
    EXPECT_FALSE(static_cast<const FusedMixedPrecisionLambParamState&>(state).master_param.defined());
  }
}

TEST(MasterStorage, LoadingDropsMastersThatTheOptimizerHasNoUseFor) {
  const auto params = make_params(1, at::kBFloat16);
  FusedAdam before(params, FusedAdamOptions(0.1).capturable(true).master_weights(true));
  set_grads(params, 1);
  before.step();
  for (const MasterStorage storage : {MasterStorage::float32, MasterStorage::stochastic}) {
    FusedAdam after(params, FusedAdamOptions(0.1).master_storage(storage));
    load(after, saved(before));
    for (const at::Tensor& param : params) {
      EXPECT_FALSE(static_cast<FusedAdamParamState&>(*after.state().at(param.unsafeGetTensorImpl())).master_param.defined());
    }
    EXPECT_NO_THROW(after.step()) << name_of(storage);  // the file's option master_weights has no effect
  }
}

}  // namespace
}  // namespace test
