// Updates that need norms of whole tensors: NovoGrad, LAMB and LARC.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu/optimizers.h"
#include "kernels/multi_tensor.h"
#include "kernels/rules/novograd.h"
#include "kernels/update.h"

namespace apex::kernels {
namespace {

using plan::Access;

// A float32 tensor on the CPU with one element for each tensor of the lists.
void check_norms(const char* op, const char* name, const at::Tensor& norms, size_t count) {
  TORCH_CHECK(norms.defined() && norms.scalar_type() == at::kFloat && norms.is_cpu() && norms.is_contiguous() &&
                  norms.numel() == static_cast<int64_t>(count),
              op, ": ", name, " must be a contiguous Float tensor on the CPU with ", count, " elements, one for each tensor.");
}

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
  const float* before = running.const_data_ptr<float>();
  const float* now = norms.const_data_ptr<float>();
  for (int64_t i = 0; i < norms.numel(); ++i) {
    const bool l2 = control.norm_type == NormType::l2;
    const double norm = control.first_run ? now[i] : rules::blended_norm(before[i], now[i], control.beta2, l2);
    result.mutable_data_ptr<float>()[i] = static_cast<float>(norm);
  }
  return result;
}

}  // namespace

void multi_tensor_novograd(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, const at::Tensor& grad_norms,
                           at::TensorList model_params, const NovoGradControl& control) {
  const char* const op = "multi_tensor_novograd";
  const at::NoGradGuard no_grad;
  check_step(op, control);
  check_norms(op, "grad_norms", grad_norms, grads.size());
  const Update update(
      op, {{"grads", grads, Access::read}, {"params", params, Access::write}, {"exp_avgs", exp_avgs, Access::write}},
      model_params, control);
  if (update.stopped()) return;
  const at::Tensor norms = blended(grad_norms, norms_of(grads, control), control);
  if (control.found_inf.defined() && norms.sub(norms).ne(0).any().item<bool>()) {
    control.found_inf.fill_(1);
    return;
  }
  update.run([&](const plan::Group& group) { cpu::novograd(group, control, norms.const_data_ptr<float>(), update.copies()); });
  grad_norms.copy_(norms.view(grad_norms.sizes()));
}

LambNorms multi_tensor_lamb_stage_1(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList updates, const LambControl& control) {
  const char* const op = "multi_tensor_lamb_stage_1";
  const at::NoGradGuard no_grad;
  check_step(op, control);
  const at::Tensor& global_norm = control.global_grad_norm;
  TORCH_CHECK(!global_norm.defined() || (global_norm.scalar_type() == at::kFloat && global_norm.numel() == 1), op,
              ": global_grad_norm must be a Float tensor of one element, or undefined.");
  const Update update(op,
                      {{"grads", grads, Access::read},
                       {"params", params, Access::read},
                       {"exp_avgs", exp_avgs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write},
                       {"updates", updates, Access::write}},
                      {}, control);
  if (update.stopped()) return {};
  const auto count = static_cast<int64_t>(update.count());
  const LambNorms norms = {at::zeros({count}, at::kFloat), at::zeros({count}, at::kFloat)};
  update.run([&](const plan::Group& group) { cpu::lamb_stage_1(group, control, norms); });
  return norms;
}

void multi_tensor_lamb_stage_2(at::TensorList updates, at::TensorList params, at::TensorList model_params,
                               const LambNorms& norms, const LambControl& control) {
  const char* const op = "multi_tensor_lamb_stage_2";
  const at::NoGradGuard no_grad;
  const Update update(op, {{"updates", updates, Access::read}, {"params", params, Access::write}}, model_params, control);
  if (update.stopped()) return;
  check_norms(op, "norms.params", norms.params, update.count());
  check_norms(op, "norms.updates", norms.updates, update.count());
  update.run([&](const plan::Group& group) { cpu::lamb_stage_2(group, control, norms, update.copies()); });
}

void multi_tensor_larc(at::TensorList grads, at::TensorList params, const LarcControl& control) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_larc", {{"grads", grads, Access::write}, {"params", params, Access::read}}, {}, control);
  if (update.stopped()) return;
  const at::Tensor param_norms = l2_norms(params);
  const at::Tensor grad_norms = l2_norms(grads);
  update.run([&](const plan::Group& group) {
    cpu::larc(group, control, param_norms.const_data_ptr<float>(), grad_norms.const_data_ptr<float>());
  });
}

}  // namespace apex::kernels
