// NovoGrad and LAMB, which need per-tensor norms. Torch has neither, so they are composed of foreach operators for comparison.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"
#include "optimizer_work.h"

namespace bench::kernels {
namespace {

/// A tensor's elements as scalars, for foreach operators.
std::vector<at::Scalar> scalars(const at::Tensor& values) {
  const auto on_host = values.to(at::kCPU, at::kDouble);
  const double* const data = on_host.const_data_ptr<double>();
  return {data, data + on_host.numel()};
}

at::Tensor norms(at::TensorList list) { return at::stack(at::_foreach_norm(list)); }

void our_novograd(const Lists& lists, const at::Tensor& running) {
  apex::kernels::NovoGradSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  settings.step = kStep;
  apex::kernels::multi_tensor_novograd(lists.grads, lists.params, lists.first, running, lists.copies, settings);
}

void foreach_novograd(const Lists& lists, at::Tensor running) {
  const auto now = norms(lists.grads).to(at::kFloat);
  running.square_().mul_(kBeta2).addcmul_(now, now, 1 - kBeta2).sqrt_();
  at::_foreach_mul_(lists.first, kBeta1);
  at::_foreach_add_(lists.first, lists.grads, 1 - kBeta1);
  const auto denominators = (running / std::sqrt(1 - std::pow(kBeta2, kStep)) + kEps) * (1 - std::pow(kBeta1, kStep));
  const auto steps = at::_foreach_div(lists.first, scalars(denominators));
  at::_foreach_add_(steps, lists.params, kDecay);
  at::_foreach_add_(lists.params, steps, -kLr);
}

void our_lamb(const Lists& lists, const at::Tensor& found_inf) {
  apex::kernels::LambSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  settings.step = kStep;
  const auto norm = std::get<0>(apex::kernels::multi_tensor_l2norm(found_inf, lists.grads, /*per_tensor=*/false));
  const auto found = apex::kernels::multi_tensor_lamb_stage_1(lists.grads, lists.params, lists.first, lists.second,
                                                              lists.updates, norm, settings);
  apex::kernels::multi_tensor_lamb_stage_2(lists.updates, lists.params, lists.copies, found, settings);
}

void foreach_lamb(const Lists& lists) {
  const double correction = 1 - std::pow(kBeta1, kStep), root_correction = std::sqrt(1 - std::pow(kBeta2, kStep));
  const double norm = norms(lists.grads).norm().item<double>();
  const auto grads = at::_foreach_div(lists.grads, std::max(1.0, norm));
  at::_foreach_lerp_(lists.first, grads, 1 - kBeta1);
  at::_foreach_mul_(lists.second, kBeta2);
  at::_foreach_addcmul_(lists.second, grads, grads, 1 - kBeta2);
  const auto roots = at::_foreach_sqrt(lists.second);
  at::_foreach_div_(roots, root_correction);
  at::_foreach_add_(roots, kEps);
  const auto updates = at::_foreach_div(lists.first, roots);
  at::_foreach_div_(updates, correction);
  at::_foreach_add_(updates, lists.params, kDecay);
  at::_foreach_mul_(updates, scalars(norms(lists.params) / norms(updates)));
  at::_foreach_add_(lists.params, updates, -kLr);
}

}  // namespace

Comparison novograd(const Lists& lists) {
  const auto count = static_cast<int64_t>(lists.grads.size());
  const auto running = at::full({count}, 1.0, lists.grads.front().options().dtype(at::kFloat));
  Comparison comparison{{{"apex_cpp", [=] { our_novograd(lists, running); }}},
                        {{{lists.grads, Access::read}}, update_pass(lists, {lists.first})}};
  if (lists.uniform) comparison.contenders.push_back({"foreach", [=] { foreach_novograd(lists, running); }});
  return comparison;
}

Comparison lamb(const Lists& lists) {
  const auto found_inf = at::zeros({1}, lists.grads.front().options().dtype(at::kInt));
  const PassTraffic stage_1{{lists.grads, Access::read},
                            {lists.params, Access::read},
                            {lists.first, Access::update},
                            {lists.second, Access::update},
                            {lists.updates, Access::write}};
  PassTraffic stage_2{{lists.updates, Access::read}, {lists.params, Access::update}};
  if (!lists.copies.empty()) stage_2.push_back({lists.copies, Access::write});
  Comparison comparison{{{"apex_cpp", [=] { our_lamb(lists, found_inf); }}}, {{{lists.grads, Access::read}}, stage_1, stage_2}};
  if (lists.uniform) comparison.contenders.push_back({"foreach", [=] { foreach_lamb(lists); }});
  return comparison;
}

}  // namespace bench::kernels
