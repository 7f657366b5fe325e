// A whole Adam step at O2 and O5 after the backward pass: check, unscale, clip, update, copy to the model.
#include "step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "../suites.h"

namespace bench {
namespace step {

using apex::optimizers::MasterStorage;
using apex::optimizers::MomentStorage;
using kernels::Access;

Training::Training(const Case& shapes, at::ScalarType dtype, at::Device device)
    : grads(kernels::random(shapes, dtype, device)),
      masters(kernels::random(shapes, at::kFloat, device)),
      exp_avgs(kernels::filled(shapes, at::kFloat, device, 0.01)),
      exp_avg_sqs(kernels::filled(shapes, at::kFloat, device, 0.01)),
      model(kernels::random(shapes, dtype, device)),
      found_inf(at::zeros({1}, at::TensorOptions(device).dtype(at::kInt))),
      inv_scale(at::full({1}, kInvScale, at::TensorOptions(device).dtype(at::kFloat))) {}

namespace {

struct Level {
  const char* name;
  at::ScalarType dtype;
};

constexpr Level kLevels[] = {{"O2", at::kHalf}, {"O5", at::kBFloat16}};

std::vector<Contender> contenders(const Training& t, const Level& level) {
  std::vector<Contender> all = {fused_order(t), fused_adam(t, level.name, false), fused_adam(t, level.name, false, true)};
  if (level.dtype == at::kBFloat16) {
    all.push_back(fused_adam(t, MasterStorage::remainder16, MomentStorage::float32));
    all.push_back(fused_adam(t, MasterStorage::remainder8, MomentStorage::float32));
    all.push_back(fused_adam(t, MasterStorage::remainder8, MomentStorage::int8));
    all.push_back(fused_adam(t, MasterStorage::stochastic, MomentStorage::float32));
  }
  for (const auto& each : {apex_order(t), fused_adam(t, level.name, true), fused_adam(t, level.name, true, true),
                           torch_order(t, false), torch_order(t, true)}) {
    all.push_back(each);
  }
  return all;
}

kernels::Comparison comparison(const Training& t, const Level& level) {
  return {contenders(t, level),
          {{{t.grads, Access::read}},
           {{t.grads, Access::read},
            {t.masters, Access::update},
            {t.exp_avgs, Access::update},
            {t.exp_avg_sqs, Access::update},
            {t.model, Access::write}}}};
}

}  // namespace
}  // namespace step

void run_step(Runner& runner) {
  const at::NoGradGuard no_grad;
  for (const auto& level : step::kLevels) {
    const std::string group = std::string("adam step ") + level.name;
    for (const auto& shapes : kernels::cases()) {
      if (!runner.wants(group, shapes.name)) continue;
      const step::Training training(shapes, level.dtype, runner.device());
      kernels::compare(runner, group, shapes.name, step::comparison(training, level));
    }
    runner.print_group();
  }
}

}  // namespace bench
