#include <ATen/Functions.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <memory>

#include "kernels/optimizers.h"
#include "optimizer_work.h"

namespace bench::kernels {
namespace {

void adam_ours(const Lists& lists) {
  apex::kernels::AdamSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  settings.step = kStep;
  apex::kernels::multi_tensor_adam(lists.grads, lists.params, lists.first, lists.second, lists.copies, settings);
}

void adam_foreach(const Lists& lists) {
  const double correction = 1 - std::pow(kBeta1, kStep), root_correction = std::sqrt(1 - std::pow(kBeta2, kStep));
  at::_foreach_mul_(lists.params, 1 - kLr * kDecay);
  at::_foreach_lerp_(lists.first, lists.grads, 1 - kBeta1);
  at::_foreach_mul_(lists.second, kBeta2);
  at::_foreach_addcmul_(lists.second, lists.grads, lists.grads, 1 - kBeta2);
  const auto roots = at::_foreach_sqrt(lists.second);
  at::_foreach_div_(roots, root_correction);
  at::_foreach_add_(roots, kEps);
  at::_foreach_addcdiv_(lists.params, lists.first, roots, -kLr / correction);
}

}  // namespace

Comparison adam(const Lists& lists) {
  Comparison comparison{{{"apex_cpp", [=] { adam_ours(lists); }}}, {update_pass(lists, {lists.first, lists.second})}};
  if (!lists.uniform) return comparison;
  const auto fused = [lists, steps = step_counts(lists)] {
    at::_fused_adamw_(lists.params, lists.grads, lists.first, lists.second, {}, steps, kLr, kBeta1, kBeta2, kDecay, kEps, false,
                      false);
  };
  const auto options = torch::optim::AdamWOptions(kLr).betas({kBeta1, kBeta2}).eps(kEps).weight_decay(kDecay);
  const auto optimizer = std::make_shared<torch::optim::AdamW>(with_grads(lists), options);
  comparison.contenders.push_back({"fused", fused});
  comparison.contenders.push_back({"foreach", [=] { adam_foreach(lists); }});
  comparison.contenders.push_back({"optim", [=] { optimizer->step(); }});
  return comparison;
}

}  // namespace bench::kernels
