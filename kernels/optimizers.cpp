#include "kernels/optimizers.h"

#include "kernels/cpu/kernels.h"
#include "kernels/multi_tensor.h"
#include "kernels/update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace apex::kernels {

using plan::Access;

void multi_tensor_sgd(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers, at::TensorList model_params,
                      const SgdControl& control) {
  const at::NoGradGuard no_grad;
  std::vector<plan::TensorList> lists = {{"grads", grads, Access::read}, {"params", params, Access::write}};
  if (control.momentum != 0) lists.push_back({"momentum_buffers", momentum_buffers, Access::write});
  const Update update("multi_tensor_sgd", std::move(lists), model_params, control);
  update.run([&](const plan::Group& group) { cpu::sgd(group, read_now(control), update.copies()); },
             [&](const cuda::Call& call) { cuda::sgd(call, control); });
}

void multi_tensor_adam(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                       at::TensorList model_params, const AdamControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_adam",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::write},
                       {"exp_avgs", exp_avgs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write}},
                      model_params, control);
  update.run([&](const plan::Group& group) { cpu::adam(group, read_now(control), update.copies()); },
             [&](const cuda::Call& call) { cuda::adam(call, control); });
  update.count_step(control);
}

void multi_tensor_adagrad(at::TensorList grads, at::TensorList params, at::TensorList sums, at::TensorList model_params,
                          const AdagradControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_adagrad",
                      {{"grads", grads, Access::read}, {"params", params, Access::write}, {"sums", sums, Access::write}},
                      model_params, control);
  update.run([&](const plan::Group& group) { cpu::adagrad(group, read_now(control), update.copies()); },
             [&](const cuda::Call& call) { cuda::adagrad(call, control); });
}

}  // namespace apex::kernels

// Updates that need norms of whole tensors: NovoGrad, LAMB and LARC.

namespace apex::kernels {
namespace {

using plan::Access;

at::Tensor no_flag() { return at::zeros({1}, at::kInt); }

at::Tensor l2_norms(at::TensorList list) { return std::get<1>(multi_tensor_l2norm(no_flag(), list, /*per_tensor=*/true)); }

// The norm of each gradient as the rule sees it.
at::Tensor norms_of(at::TensorList grads, const NovoGradControl& control) {
  const at::Tensor scale = at::full({1}, control.grad_scale, at::kFloat);
  if (control.norm_type == NormType::l2) return std::get<1>(multi_tensor_unscale_l2norm(no_flag(), grads, scale, true));
  return std::get<1>(multi_tensor_maxnorm(no_flag(), grads, true)).mul(scale.abs());
}

// The running norms after this step, as float32.
at::Tensor blended(const at::Tensor& running, const at::Tensor& norms, const NovoGradControl& control) {
  at::Tensor result = at::empty({norms.numel()}, at::TensorOptions().dtype(at::kFloat));
  const rules::NovoGradSettings settings = settings_of(control);
  const float* before = running.const_data_ptr<float>();
  const float* now = norms.const_data_ptr<float>();
  for (int64_t i = 0; i < norms.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] = rules::next_norm(settings, before[i], now[i]);
  }
  return result;
}

// The running norms for an update of CPU tensors, or an undefined tensor if they stop it.
at::Tensor norms_of_step(at::TensorList grads, const at::Tensor& running, const NovoGradControl& control) {
  const at::Tensor norms = blended(running, norms_of(grads, control), control);
  if (!control.found_inf.defined() || !norms.sub(norms).ne(0).any().item<bool>()) return norms;
  control.found_inf.fill_(1);
  return {};
}

}  // namespace

void multi_tensor_novograd(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, const at::Tensor& grad_norms,
                           at::TensorList model_params, const NovoGradControl& control) {
  const at::NoGradGuard no_grad;
  const Update update(
      "multi_tensor_novograd",
      {{"grads", grads, Access::read}, {"params", params, Access::write}, {"exp_avgs", exp_avgs, Access::write}}, model_params,
      control);
  update.check_norms("grad_norms", grad_norms);
  if (update.stopped()) return;
  const bool on_cpu = !cuda::handles(update.device());
  const NovoGradControl now = on_cpu ? read_now(control) : control;
  const at::Tensor norms = on_cpu ? norms_of_step(grads, grad_norms, now) : grad_norms;
  if (!norms.defined()) return;
  update.run([&](const plan::Group& group) { cpu::novograd(group, now, norms.const_data_ptr<float>(), update.copies()); },
             [&](const cuda::Call& call) { cuda::novograd(call, control, grad_norms); });
  on_cpu ? void(grad_norms.copy_(norms.view(grad_norms.sizes()))) : bump_versions(grad_norms);
  update.count_step(control);
}

LambNorms multi_tensor_lamb_stage_1(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList updates, const LambControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_lamb_stage_1",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::read},
                       {"exp_avgs", exp_avgs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write},
                       {"updates", updates, Access::write}},
                      {}, control);
  update.check_value("global_grad_norm", control.global_grad_norm, at::kFloat);
  if (update.stopped()) return {};
  const auto count = static_cast<int64_t>(update.count());
  const auto options = at::TensorOptions().dtype(at::kFloat).device(update.device());
  const LambNorms norms = {at::zeros({count}, options), at::zeros({count}, options)};
  update.run([&](const plan::Group& group) { cpu::lamb_stage_1(group, read_now(control), norms); },
             [&](const cuda::Call& call) { cuda::lamb_stage_1(call, control, norms); });
  update.count_step(control);
  return norms;
}

void multi_tensor_lamb_stage_2(at::TensorList updates, at::TensorList params, at::TensorList model_params,
                               const LambNorms& norms, const LambControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_lamb_stage_2", {{"updates", updates, Access::read}, {"params", params, Access::write}},
                      model_params, control);
  if (update.stopped()) return;
  update.check_norms("norms.params", norms.params);
  update.check_norms("norms.updates", norms.updates);
  update.run([&](const plan::Group& group) { cpu::lamb_stage_2(group, read_now(control), norms, update.copies()); },
             [&](const cuda::Call& call) { cuda::lamb_stage_2(call, control, norms); });
}

void multi_tensor_larc(at::TensorList grads, at::TensorList params, const LarcControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_larc", {{"grads", grads, Access::write}, {"params", params, Access::read}}, {}, control);
  if (update.stopped()) return;
  const bool on_cpu = !cuda::handles(update.device());
  const at::Tensor param_norms = on_cpu ? l2_norms(params) : at::Tensor();
  const at::Tensor grad_norms = on_cpu ? l2_norms(grads) : at::Tensor();
  update.run(
      [&](const plan::Group& group) {
        cpu::larc(group, read_now(control), param_norms.const_data_ptr<float>(), grad_norms.const_data_ptr<float>());
      },
      [&](const cuda::Call& call) { cuda::larc(call, control); });
}

}  // namespace apex::kernels
