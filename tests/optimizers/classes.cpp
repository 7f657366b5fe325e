#include "tests/optimizers/classes.h"

namespace test {
namespace {

using namespace apex::optimizers;

template <class Opt, class Options>
OptimizerClass with(const std::string& name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> params, bool materialize) -> OptimizerPtr {
            Options chosen = options;
            return ready_to_train<Opt>(std::move(params), chosen.materialize_master_grads(materialize));
          }};
}

}  // namespace

const std::vector<OptimizerClass>& optimizer_classes() {
  constexpr double kRate = 0.05;
  static const std::vector<OptimizerClass> kClasses = {
      with<FusedSGD>("FusedSGD", FusedSGDOptions(kRate).momentum(0.9).dampening(0.1).weight_decay(0.01)),
      with<FusedAdam>("FusedAdam", FusedAdamOptions(kRate).weight_decay(0.01)),
      with<FusedAdagrad>("FusedAdagrad", FusedAdagradOptions(kRate).weight_decay(0.01)),
      with<FusedLARS>("FusedLARS", FusedLARSOptions(kRate).momentum(0.9).weight_decay(0.01).trust_coefficient(0.5).eps(1e-3)),
      with<FusedLion>("FusedLion", FusedLionOptions(kRate).weight_decay(0.01)),
      with<FusedNovoGrad>("FusedNovoGrad", FusedNovoGradOptions(kRate).weight_decay(0.01)),
      with<FusedScheduleFreeAdamW>("FusedScheduleFreeAdamW",
                                   FusedScheduleFreeAdamWOptions(kRate).weight_decay(0.01).warmup_steps(3).r(1)),
      with<FusedLAMB>("FusedLAMB", FusedLAMBOptions(kRate)),
      with<FusedMixedPrecisionLamb>("FusedMixedPrecisionLamb", FusedMixedPrecisionLambOptions(kRate))};
  return kClasses;
}

std::string name_of_class(const ::testing::TestParamInfo<OptimizerClass>& test) { return test.param.name; }

}  // namespace test
