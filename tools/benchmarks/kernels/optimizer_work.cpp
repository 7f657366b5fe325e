#include "optimizer_work.h"

#include <ATen/ops/full.h>

#include "kernels.h"

namespace bench::kernels {
namespace {

constexpr Mix kMixes[] = {
    {"f32", at::kFloat, at::kFloat, false},
    {"bf16", at::kBFloat16, at::kBFloat16, false},
    {"O2", at::kHalf, at::kFloat, true},
    {"O5", at::kBFloat16, at::kFloat, true},
};

constexpr OptimizerWork kOptimizers[] = {
    {"adam", 2, false, adam},         {"sgd", 1, false, sgd},  {"adagrad", 1, false, adagrad},
    {"novograd", 1, false, novograd}, {"lamb", 2, true, lamb},
};

Lists make_lists(const Case& shapes, const OptimizerWork& work, const Mix& mix, at::Device device) {
  Lists lists;
  lists.uniform = mix.grads == mix.params;
  lists.grads = random(shapes, mix.grads, device);
  lists.params = random(shapes, mix.params, device);
  lists.first = filled(shapes, mix.params, device, 0.01);
  if (work.states == 2) lists.second = filled(shapes, mix.params, device, 0.01);
  if (work.needs_updates) lists.updates = filled(shapes, mix.params, device, 0);
  if (mix.copies) lists.copies = filled(shapes, mix.grads, device, 0);
  return lists;
}

}  // namespace

Tensors step_counts(const Lists& lists) {
  Tensors steps;
  for (const auto& param : lists.params) steps.push_back(at::full({}, kStep, param.options().dtype(at::kFloat)));
  return steps;
}

Tensors with_grads(const Lists& lists) {
  Tensors params = lists.params;
  for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = lists.grads[i];
  return params;
}

PassTraffic update_pass(const Lists& lists, const std::vector<Tensors>& states) {
  PassTraffic pass{{lists.grads, Access::read}, {lists.params, Access::update}};
  for (const auto& state : states) pass.push_back({state, Access::update});
  if (!lists.copies.empty()) pass.push_back({lists.copies, Access::write});
  return pass;
}

void run_optimizers(Runner& runner) {
  for (const auto& work : kOptimizers) {
    for (const auto& mix : kMixes) {
      const std::string group = std::string(work.name) + " " + mix.name;
      for (const auto& shapes : cases()) {
        if (runner.wants(group, shapes.name)) {
          compare(runner, group, shapes.name, work.comparison(make_lists(shapes, work, mix, runner.device())));
        }
      }
      runner.print_group();
    }
  }
}

}  // namespace bench::kernels
