#include <apex_cpp/amp_C/optimizers.h>

#include <apex_cpp/amp_C/detail/arguments.h>
#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros_like.h>

#include <array>

using namespace apex;
using amp_C::detail::check_roles;
using amp_C::detail::choice;
using amp_C::detail::Float32List;
using amp_C::detail::kAlsoDouble;
using amp_C::detail::Role;
using amp_C::detail::Use;

void multi_tensor_sgd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float wd,
                           float momentum, float dampening, float lr, bool nesterov, bool first_run, bool wd_after_momentum,
                           float scale) {
  const bool copies = tensor_lists.size() == 4;
  const std::array<Role, 4> roles = {{{"grads", Use::read},
                                      {"params", Use::write},
                                      {"momentum_buffers", momentum != 0 ? Use::write : Use::none},
                                      {"model_params", Use::write}}};
  check_roles("multi_tensor_sgd_cuda", chunk_size, noop_flag, tensor_lists, c10::ArrayRef(roles).slice(0, copies ? 4 : 3));
  kernels::StepTensors tensors;
  tensors.found_inf = noop_flag;
  kernels::SgdSettings settings;
  settings.grad_scale = scale;
  settings.lr = lr;
  settings.weight_decay = wd;
  settings.momentum = momentum;
  settings.dampening = dampening;
  settings.nesterov = nesterov;
  settings.first_run = first_run;
  settings.weight_decay_after_momentum = wd_after_momentum;
  kernels::multi_tensor_sgd(tensor_lists[0], tensor_lists[1], tensor_lists[2],
                            copies ? at::TensorList(tensor_lists[3]) : at::TensorList(), settings, tensors);
}

void multi_tensor_adagrad_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                               const float lr, const float epsilon, const int mode, const float weight_decay) {
  const char* const op = "multi_tensor_adagrad_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::read, kAlsoDouble}, {"params", Use::write, kAlsoDouble}, {"sums", Use::write, kAlsoDouble}});
  kernels::AdagradSettings settings;
  settings.lr = lr;
  settings.weight_decay = weight_decay;
  settings.eps = epsilon;
  settings.adagrad_w_mode = choice(op, "mode", mode);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]), sums(tensor_lists[2]);
  kernels::multi_tensor_adagrad(grads.tensors(), params.tensors(), sums.tensors(), {}, settings);
  params.write_back();
  sums.write_back();
}

void multi_tensor_lars_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            at::Tensor grad_norms, at::Tensor param_norms, float lr, float trust_coefficient, float epsilon,
                            float weight_decay, float momentum, float /*dampening*/, bool nesterov, bool /*first_run*/,
                            bool /*wd_after_momentum*/, float scale, const bool is_skipped) {
  const char* const op = "multi_tensor_lars_cuda";
  const bool copies = tensor_lists.size() == 4;
  const std::array<Role, 4> roles = {
      {{"grads", Use::read}, {"params", Use::write}, {"momentum_buffers", Use::write}, {"model_params", Use::write}}};
  check_roles(op, chunk_size, noop_flag, tensor_lists, c10::ArrayRef(roles).slice(0, copies ? 4 : 3));
  amp_C::detail::check_one_per_tensor(op, "grad_norms", grad_norms, tensor_lists[0].size(), noop_flag.device());
  amp_C::detail::check_one_per_tensor(op, "param_norms", param_norms, tensor_lists[0].size(), noop_flag.device());
  kernels::StepTensors tensors;
  tensors.found_inf = noop_flag;
  kernels::LarsSettings settings;
  settings.grad_scale = scale;
  settings.lr = lr;
  settings.weight_decay = weight_decay;
  settings.momentum = momentum;
  settings.trust_coefficient = trust_coefficient;
  settings.eps = epsilon;
  settings.nesterov = nesterov;
  settings.adapts = !is_skipped;
  kernels::multi_tensor_lars(tensor_lists[0], tensor_lists[1], tensor_lists[2],
                             copies ? at::TensorList(tensor_lists[3]) : at::TensorList(), {grad_norms, param_norms}, settings,
                             tensors);
}

void multi_tensor_novograd_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                at::Tensor grad_norms, const float lr, const float beta1, const float beta2,
                                const float epsilon, const int step, const int bias_correction, const float weight_decay,
                                const int grad_averaging, const int mode, const int norm_type) {
  const char* const op = "multi_tensor_novograd_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::read, kAlsoDouble}, {"params", Use::write, kAlsoDouble}, {"exp_avgs", Use::write, kAlsoDouble}});
  amp_C::detail::check_one_per_tensor(op, "grad_norms", grad_norms, tensor_lists[0].size(), noop_flag.device());
  TORCH_CHECK_VALUE(norm_type == 0 || norm_type == 2, op, ": norm_type is ", norm_type,
                    ". Use 2 for L2 norms or 0 for the largest magnitude.");
  kernels::NovoGradSettings settings;
  settings.lr = lr;
  settings.weight_decay = weight_decay;
  settings.grad_averaging = choice(op, "grad_averaging", grad_averaging);
  settings.reg_inside_moment = !choice(op, "mode", mode);
  settings.norm_type = static_cast<kernels::NormType>(norm_type);
  amp_C::detail::set_moments(op, settings, beta1, beta2, epsilon, step, bias_correction);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]), exp_avgs(tensor_lists[2]);
  kernels::multi_tensor_novograd(grads.tensors(), params.tensors(), exp_avgs.tensors(), grad_norms, {}, settings);
  params.write_back();
  exp_avgs.write_back();
  // The flag reports non-finite values of these gradients; the running norms may hold an earlier overflow.
  if (norm_type == 2) {
    kernels::multi_tensor_l2norm(noop_flag, grads.tensors(), /*per_tensor=*/false);
  } else {
    kernels::multi_tensor_maxnorm(noop_flag, grads.tensors(), /*per_tensor=*/false);
  }
}

namespace {

// grads *= inv_scale if the flag is 0. The host does not wait.
void unscale(const std::vector<at::Tensor>& grads, const at::Tensor& inv_scale, const at::Tensor& noop_flag) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = inv_scale.view(-1).masked_fill(noop_flag.view(-1).ne(0), 1.0);
  at::Tensor ignored = at::zeros_like(factor);
  at::_amp_foreach_non_finite_check_and_unscale_(grads, ignored, factor);
}

constexpr std::array<Role, 5> kCapturableRoles = {{{"grads", Use::write, kAlsoDouble},
                                                   {"params", Use::write, kAlsoDouble},
                                                   {"exp_avgs", Use::write},
                                                   {"exp_avg_sqs", Use::write},
                                                   {"masters", Use::write}}};

struct CapturableAdam {
  float beta1, beta2, epsilon;
  int mode, bias_correction;
  float weight_decay;
  at::Tensor lr, step, inv_scale;
};

// With a fifth list the masters are stepped and copied to `params`; with four lists `params` themselves are stepped.
void adam_capturable(const char* op, int chunk_size, const at::Tensor& noop_flag,
                     const std::vector<std::vector<at::Tensor>>& lists, size_t expected_lists, const CapturableAdam& adam) {
  check_roles(op, chunk_size, noop_flag, lists, c10::ArrayRef(kCapturableRoles).slice(0, expected_lists));
  kernels::AdamSettings settings;
  settings.weight_decay = adam.weight_decay;
  settings.adam_w_mode = choice(op, "mode", adam.mode);
  amp_C::detail::set_means(op, settings, adam.beta1, adam.beta2, adam.epsilon, adam.bias_correction);
  const kernels::StepTensors tensors =
      amp_C::detail::step_tensors(op, noop_flag, adam.step, settings.bias_correction, adam.lr, adam.inv_scale);
  const Float32List grads(lists[0]), params(lists[1]);
  if (expected_lists == kCapturableRoles.size()) {
    kernels::multi_tensor_adam(grads.tensors(), lists[4], lists[2], lists[3], params.tensors(), settings, tensors);
  } else {
    kernels::multi_tensor_adam(grads.tensors(), params.tensors(), lists[2], lists[3], {}, settings, tensors);
  }
  params.write_back(noop_flag);
  unscale(lists[0], adam.inv_scale, noop_flag);
}

}  // namespace

void multi_tensor_adam_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                            const float lr, const float beta1, const float beta2, const float epsilon, const int step,
                            const int mode, const int bias_correction, const float weight_decay) {
  const char* const op = "multi_tensor_adam_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::read, kAlsoDouble},
               {"params", Use::write, kAlsoDouble},
               {"exp_avgs", Use::write},
               {"exp_avg_sqs", Use::write}});
  kernels::AdamSettings settings;
  settings.lr = lr;
  settings.weight_decay = weight_decay;
  settings.adam_w_mode = choice(op, "mode", mode);
  amp_C::detail::set_moments(op, settings, beta1, beta2, epsilon, step, bias_correction);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]);
  kernels::multi_tensor_adam(grads.tensors(), params.tensors(), tensor_lists[2], tensor_lists[3], {}, settings);
  params.write_back();
}

void multi_tensor_adam_capturable_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                       at::Tensor lr, const float beta1, const float beta2, const float epsilon,
                                       at::Tensor step, const int mode, const int bias_correction, const float weight_decay,
                                       at::Tensor inv_scale) {
  adam_capturable("multi_tensor_adam_capturable_cuda", chunk_size, noop_flag, tensor_lists, 4,
                  {beta1, beta2, epsilon, mode, bias_correction, weight_decay, lr, step, inv_scale});
}

void multi_tensor_adam_capturable_master_cuda(int chunk_size, at::Tensor noop_flag,
                                              std::vector<std::vector<at::Tensor>> tensor_lists, at::Tensor lr,
                                              const float beta1, const float beta2, const float epsilon, at::Tensor step,
                                              const int mode, const int bias_correction, const float weight_decay,
                                              at::Tensor inv_scale) {
  adam_capturable("multi_tensor_adam_capturable_master_cuda", chunk_size, noop_flag, tensor_lists, 5,
                  {beta1, beta2, epsilon, mode, bias_correction, weight_decay, lr, step, inv_scale});
}
