#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>

#include <memory>

#include "kernels/optimizers.h"
#include "optimizer_work.h"

namespace bench::kernels {
namespace {

void adagrad_ours(const Lists& lists) {
  apex::kernels::AdagradSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  apex::kernels::multi_tensor_adagrad(lists.grads, lists.params, lists.first, lists.copies, settings);
}

void adagrad_foreach(const Lists& lists) {
  const auto steps = at::_foreach_add(lists.grads, lists.params, kDecay);
  at::_foreach_addcmul_(lists.first, steps, steps);
  const auto roots = at::_foreach_sqrt(lists.first);
  at::_foreach_add_(roots, kEps);
  at::_foreach_addcdiv_(lists.params, steps, roots, -kLr);
}

}  // namespace

Comparison adagrad(const Lists& lists) {
  Comparison comparison{{{"apex_cpp", [=] { adagrad_ours(lists); }}}, {update_pass(lists, {lists.first})}};
  if (!lists.uniform) return comparison;
  const auto optimizer = std::make_shared<torch::optim::Adagrad>(
      with_grads(lists), torch::optim::AdagradOptions(kLr).weight_decay(kDecay).eps(kEps));
  if (lists.params.front().is_cpu()) {  // torch has fused Adagrad for CPUs only
    const auto fused = [lists, steps = step_counts(lists)] {
      at::_fused_adagrad_(lists.params, lists.grads, lists.first, steps, kLr, 0, kDecay, kEps, false);
    };
    comparison.contenders.push_back({"fused", fused});
  }
  comparison.contenders.push_back({"foreach", [=] { adagrad_foreach(lists); }});
  comparison.contenders.push_back({"optim", [=] { optimizer->step(); }});
  return comparison;
}

}  // namespace bench::kernels
