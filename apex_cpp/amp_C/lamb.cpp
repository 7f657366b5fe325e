#include <apex_cpp/amp_C/detail/arguments.h>
#include <apex_cpp/amp_C/optimizers.h>
#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <map>

using namespace apex;
using amp_C::TensorLists;
using amp_C::detail::check_one_element;
using amp_C::detail::check_one_per_tensor;
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

kernels::LambSettings lamb_settings(const char* op, float weight_decay, int grad_averaging, int mode,
                                    std::optional<bool> use_nvlamb) {
  kernels::LambSettings settings;
  settings.weight_decay = weight_decay;
  settings.grad_averaging = choice(op, "grad_averaging", grad_averaging);
  settings.adam_w_mode = choice(op, "mode", mode);
  settings.use_nvlamb = use_nvlamb.value_or(false);
  return settings;
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
  kernels::LambSettings settings = lamb_settings(op, weight_decay, grad_averaging, mode, use_nvlamb_python);
  amp_C::detail::set_moments(op, settings, beta1, beta2, epsilon, step, bias_correction);
  settings.lr = lr;
  settings.max_grad_norm = max_grad_norm;
  const auto& grads = tensor_lists[0];
  const kernels::LambNorms norms = kernels::multi_tensor_lamb_stage_1(grads, tensor_lists[1], tensor_lists[2], tensor_lists[3],
                                                                      grads, global_grad_norm, settings);
  raise_unless_finite(noop_flag, norms.params);
  raise_unless_finite(noop_flag, norms.updates);
  kernels::multi_tensor_lamb_stage_2(grads, tensor_lists[1], {}, norms, settings);
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
  kernels::LambSettings settings = lamb_settings(op, weight_decay, grad_averaging, mode, use_nvlamb_python);
  amp_C::detail::set_means(op, settings, beta1, beta2, epsilon, bias_correction);
  const kernels::StepTensors tensors =
      amp_C::detail::step_tensors(op, noop_flag, step, settings.bias_correction, lr, inv_scale);
  // Both norms are on the device: to clip the norm at its limit, clip their ratio at 1.
  const at::Tensor norm_over_limit = global_grad_norm.detach().div(max_grad_norm.detach());
  settings.max_grad_norm = 1.0;
  const auto& grads = tensor_lists[0];
  const auto& params = tensor_lists[1];
  kernels::multi_tensor_l2norm(noop_flag, params, /*per_tensor=*/false);
  const kernels::LambNorms norms = kernels::multi_tensor_lamb_stage_1(grads, params, tensor_lists[2], tensor_lists[3], grads,
                                                                      norm_over_limit, settings, tensors);
  if (!norms.updates.defined()) return;  // stopped by the flag
  raise_unless_finite(noop_flag, norms.updates);
  kernels::multi_tensor_lamb_stage_2(grads, params, copies ? at::TensorList(tensor_lists[4]) : at::TensorList(), norms,
                                     settings, tensors);
}

namespace {

// Splits the lists by the tensors' weight decay, since a kernel call has one weight decay for all tensors.
std::map<float, TensorLists> by_decay(const TensorLists& lists, const at::Tensor& per_tensor_decay) {
  const at::Tensor decays = per_tensor_decay.detach().cpu();
  std::map<float, TensorLists> groups;
  for (size_t index = 0; index < lists[0].size(); ++index) {
    TensorLists& group = groups[decays.const_data_ptr<float>()[index]];
    group.resize(lists.size());
    for (size_t list = 0; list < lists.size(); ++list) group[list].push_back(lists[list][index]);
  }
  return groups;
}

}  // namespace

void multi_tensor_lamb_stage1_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_decay, const int step, const float beta1, const float beta2,
                                   const float epsilon, at::Tensor global_grad_norm, const float max_global_grad_norm) {
  const char* const op = "multi_tensor_lamb_stage1_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::read},
               {"params", Use::read},
               {"exp_avgs", Use::write},
               {"exp_avg_sqs", Use::write},
               {"updates", Use::write}});
  TORCH_CHECK(per_tensor_decay.defined(), op, ": per_tensor_decay is undefined.");
  TORCH_CHECK(global_grad_norm.defined(), op, ": global_grad_norm is undefined.");
  check_one_per_tensor(op, "per_tensor_decay", per_tensor_decay, tensor_lists[0].size(), per_tensor_decay.device());
  check_one_element(op, "global_grad_norm", global_grad_norm, at::kFloat, global_grad_norm.device());
  kernels::LambSettings settings;
  amp_C::detail::set_moments(op, settings, beta1, beta2, epsilon, step + 1, /*bias_correction=*/1);
  const at::Tensor norm = global_grad_norm.detach().to(noop_flag.device());
  settings.max_grad_norm = max_global_grad_norm;
  for (const auto& [decay, lists] : by_decay(tensor_lists, per_tensor_decay)) {
    settings.weight_decay = decay;
    kernels::multi_tensor_lamb_stage_1(lists[0], lists[1], lists[2], lists[3], lists[4], norm, settings);
  }
}

void multi_tensor_lamb_stage2_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                   at::Tensor per_tensor_param_norm, at::Tensor per_tensor_update_norm, const float lr,
                                   const float weight_decay, std::optional<bool> use_nvlamb_python) {
  const char* const op = "multi_tensor_lamb_stage2_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists, {{"params", Use::write}, {"updates", Use::read}});
  const size_t count = tensor_lists[0].size();
  check_one_per_tensor(op, "per_tensor_param_norm", per_tensor_param_norm, count, noop_flag.device());
  check_one_per_tensor(op, "per_tensor_update_norm", per_tensor_update_norm, count, noop_flag.device());
  kernels::LambSettings settings;
  settings.lr = lr;
  settings.weight_decay = weight_decay;
  settings.use_nvlamb = use_nvlamb_python.value_or(false);
  kernels::multi_tensor_lamb_stage_2(tensor_lists[1], tensor_lists[0], {}, {per_tensor_param_norm, per_tensor_update_norm},
                                     settings);
}
