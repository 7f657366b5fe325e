#include <ATen/Functions.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "kernels/optimizers.h"
#include "optimizer_work.h"

namespace bench::kernels {
namespace {

void sgd_ours(const Lists& lists) {
  apex::kernels::SgdSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  settings.momentum = kMomentum;
  apex::kernels::multi_tensor_sgd(lists.grads, lists.params, lists.first, lists.copies, settings);
}

void sgd_foreach(const Lists& lists) {
  const auto steps = at::_foreach_add(lists.grads, lists.params, kDecay);
  at::_foreach_mul_(lists.first, kMomentum);
  at::_foreach_add_(lists.first, steps);
  at::_foreach_add_(lists.params, lists.first, -kLr);
}

}  // namespace

Comparison sgd(const Lists& lists) {
  Comparison comparison{{{"apex_cpp", [=] { sgd_ours(lists); }}}, {update_pass(lists, {lists.first})}};
  if (!lists.uniform) return comparison;
  const auto fused = [=] {
    at::_fused_sgd_(lists.params, lists.grads, lists.first, kDecay, kMomentum, kLr, 0, false, false, false);
  };
  const auto options = torch::optim::SGDOptions(kLr).momentum(kMomentum).weight_decay(kDecay);
  const auto optimizer = std::make_shared<torch::optim::SGD>(with_grads(lists), options);
  comparison.contenders.push_back({"fused", fused});
  comparison.contenders.push_back({"foreach", [=] { sgd_foreach(lists); }});
  comparison.contenders.push_back({"optim", [=] { optimizer->step(); }});
  return comparison;
}

}  // namespace bench::kernels
