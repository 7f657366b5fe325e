#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp_C/detail/arguments.h>
#include <apex_cpp/amp_C/detail/roles.h>
#include <apex_cpp/amp_C/lamb.h>

#include <array>

#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"

using namespace apex;
using amp_C::detail::check_one_element;
using amp_C::detail::check_roles;
using amp_C::detail::choice;
using amp_C::detail::Role;
using amp_C::detail::Use;

namespace {

// The update overwrites the gradients.
constexpr std::array<Role, 5> kRoles = {{{"grads", Use::write},
                                         {"params", Use::write},
                                         {"exp_avgs", Use::write},
                                         {"exp_avg_sqs", Use::write},
                                         {"model_params", Use::write}}};

kernels::LambControl lamb_control(const char* op, float weight_decay, int grad_averaging, int mode,
                                  std::optional<bool> use_nvlamb) {
  kernels::LambControl control;
  control.weight_decay = weight_decay;
  control.grad_averaging = choice(op, "grad_averaging", grad_averaging);
  control.adam_w_mode = choice(op, "mode", mode);
  control.use_nvlamb = use_nvlamb.value_or(false);
  return control;
}

void raise_unless_finite(const at::Tensor& noop_flag, const at::Tensor& norms) {
  const at::NoGradGuard no_grad;
  noop_flag.masked_fill_(norms.isfinite().all().logical_not(), 1);
}

}  // namespace

void multi_tensor_lamb_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                            at::Tensor global_grad_norm, const float max_grad_norm, std::optional<bool> use_nvlamb_python) {
  const char* const op = "multi_tensor_lamb_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists, c10::ArrayRef(kRoles).slice(0, 4));
  check_one_element(op, "global_grad_norm", global_grad_norm, at::kFloat, noop_flag.device());
  kernels::LambControl control = lamb_control(op, weight_decay, grad_averaging, mode, use_nvlamb_python);
  amp_C::detail::set_moments(op, control, beta1, beta2, epsilon, step, bias_correction);
  control.lr = lr;
  control.global_grad_norm = global_grad_norm;
  control.max_grad_norm = max_grad_norm;
  const auto& grads = tensor_lists[0];
  const kernels::LambNorms norms =
      kernels::multi_tensor_lamb_stage_1(grads, tensor_lists[1], tensor_lists[2], tensor_lists[3], grads, control);
  raise_unless_finite(noop_flag, norms.params);
  raise_unless_finite(noop_flag, norms.updates);
  kernels::multi_tensor_lamb_stage_2(grads, tensor_lists[1], {}, norms, control);
}

void multi_tensor_lamb_mp_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               at::Tensor lr, const float beta1, const float beta2, const float epsilon, at::Tensor step,
                               const int bias_correction, const float weight_decay, const int grad_averaging, const int mode,
                               at::Tensor global_grad_norm, at::Tensor max_grad_norm, std::optional<bool> use_nvlamb_python,
                               at::Tensor /*found_inf*/, at::Tensor inv_scale) {
  const char* const op = "multi_tensor_lamb_mp_cuda";
  const bool copies = tensor_lists.size() == 5;
  check_roles(op, chunk_size, noop_flag, tensor_lists, c10::ArrayRef(kRoles).slice(0, copies ? 5 : 4));
  check_one_element(op, "global_grad_norm", global_grad_norm, at::kFloat, noop_flag.device());
  check_one_element(op, "max_grad_norm", max_grad_norm, at::kFloat, noop_flag.device());
  kernels::LambControl control = lamb_control(op, weight_decay, grad_averaging, mode, use_nvlamb_python);
  amp_C::detail::set_device_moments(op, control, noop_flag.device(), beta1, beta2, epsilon, step, bias_correction, lr,
                                    inv_scale);
  control.found_inf = noop_flag;
  // Both norms are on the device: their ratio against 1 clips as the norm against its limit.
  control.global_grad_norm = global_grad_norm.detach().div(max_grad_norm.detach());
  control.max_grad_norm = 1.0;
  const auto& grads = tensor_lists[0];
  const auto& params = tensor_lists[1];
  kernels::multi_tensor_l2norm(noop_flag, params, /*per_tensor=*/false);
  const kernels::LambNorms norms =
      kernels::multi_tensor_lamb_stage_1(grads, params, tensor_lists[2], tensor_lists[3], grads, control);
  if (!norms.updates.defined()) return;  // stopped by the flag
  raise_unless_finite(noop_flag, norms.updates);
  kernels::multi_tensor_lamb_stage_2(grads, params, copies ? at::TensorList(tensor_lists[4]) : at::TensorList(), norms,
                                     control);
}
