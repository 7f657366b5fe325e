// Steps composed of apex_cpp's kernels and of torch's operators.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"
#include "step.h"

namespace bench::step {
namespace {

namespace ours = apex::kernels;

Tensors float_grads(const Training& training) {
  Tensors grads;
  for (const auto& master : training.masters) grads.push_back(at::empty_like(master));
  return grads;
}

ours::AdamSettings settings() {
  ours::AdamSettings settings;
  settings.lr = kLr;
  settings.weight_decay = kDecay;
  settings.step = kStep;
  return settings;
}

ours::StepTensors tensors(const Training& training, const at::Tensor& scale) {
  ours::StepTensors tensors;
  tensors.found_inf = training.found_inf;
  tensors.grad_scale = scale;
  return tensors;
}

/// The factor that clips gradients with that norm to kMaxNorm. Stays on the device.
at::Tensor clip_coefficient(const at::Tensor& norm) { return (kMaxNorm / (norm + 1e-6)).clamp_max(1.0); }

}  // namespace

Contender fused_order(const Training& t) {
  return {"apex_cpp", [t] {
            const auto norm = std::get<0>(ours::multi_tensor_l2norm(t.found_inf, t.grads, /*per_tensor=*/false));
            const auto scale = clip_coefficient(norm * kInvScale) * kInvScale;
            ours::multi_tensor_adam(t.grads, t.masters, t.exp_avgs, t.exp_avg_sqs, t.model, settings(), tensors(t, scale));
          }};
}

Contender apex_order(const Training& t) {
  return {"apex order", [t, grads = float_grads(t)] {
            ours::multi_tensor_scale(t.found_inf, t.grads, grads, kInvScale);
            const auto norm = std::get<0>(ours::multi_tensor_l2norm(t.found_inf, grads, /*per_tensor=*/false));
            ours::multi_tensor_adam(grads, t.masters, t.exp_avgs, t.exp_avg_sqs, {}, settings(),
                                    tensors(t, clip_coefficient(norm)));
            ours::multi_tensor_copy(t.masters, t.model);
          }};
}

Contender torch_order(const Training& t, bool clips) {
  const auto options = t.masters.front().options();
  Tensors steps(t.masters.size());
  std::generate(steps.begin(), steps.end(), [&] { return at::full({}, kStep, options); });
  return {clips ? "torch clipped" : "torch",
          [t, clips, steps, grads = float_grads(t), found = at::zeros({1}, options)]() mutable {
            at::_foreach_copy_(grads, t.grads);
            at::_amp_foreach_non_finite_check_and_unscale_(grads, found, t.inv_scale);
            if (clips) at::_foreach_mul_(grads, clip_coefficient(at::stack(at::_foreach_norm(grads)).norm()));
            if (found.item<float>() != 0) return;
            at::_fused_adamw_(t.masters, grads, t.exp_avgs, t.exp_avg_sqs, {}, steps, kLr, kBeta1, kBeta2, kDecay, kEps, false,
                              false);
            at::_foreach_copy_(t.model, t.masters);
          }};
}

}  // namespace bench::step
