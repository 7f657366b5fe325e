#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros_like.h>
#include <apex_cpp/amp_C/detail/arguments.h>
#include <apex_cpp/amp_C/detail/float32_list.h>
#include <apex_cpp/amp_C/detail/roles.h>
#include <apex_cpp/amp_C/optimizers.h>

#include "kernels/optimizers.h"

using namespace apex;
using amp_C::detail::check_roles;
using amp_C::detail::choice;
using amp_C::detail::Float32List;
using amp_C::detail::kAlsoDouble;
using amp_C::detail::Use;

namespace {

// grads *= inv_scale where the flag is 0, without asking the device.
void unscale(const std::vector<at::Tensor>& grads, const at::Tensor& inv_scale, const at::Tensor& noop_flag) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = inv_scale.view(-1).masked_fill(noop_flag.view(-1).ne(0), 1.0);
  at::Tensor ignored = at::zeros_like(factor);
  at::_amp_foreach_non_finite_check_and_unscale_(grads, ignored, factor);
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
  kernels::AdamControl control;
  control.lr = lr;
  control.weight_decay = weight_decay;
  control.adam_w_mode = choice(op, "mode", mode);
  amp_C::detail::set_moments(op, control, beta1, beta2, epsilon, step, bias_correction);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]);
  kernels::multi_tensor_adam(grads.tensors(), params.tensors(), tensor_lists[2], tensor_lists[3], {}, control);
  params.write_back();
}

void multi_tensor_adam_capturable_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                                       at::Tensor lr, const float beta1, const float beta2, const float epsilon,
                                       at::Tensor step, const int mode, const int bias_correction, const float weight_decay,
                                       at::Tensor inv_scale) {
  const char* const op = "multi_tensor_adam_capturable_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::write, kAlsoDouble},
               {"params", Use::write, kAlsoDouble},
               {"exp_avgs", Use::write},
               {"exp_avg_sqs", Use::write}});
  kernels::AdamControl control;
  control.found_inf = noop_flag;
  control.weight_decay = weight_decay;
  control.adam_w_mode = choice(op, "mode", mode);
  amp_C::detail::set_device_moments(op, control, noop_flag.device(), beta1, beta2, epsilon, step, bias_correction, lr,
                                    inv_scale);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]);
  kernels::multi_tensor_adam(grads.tensors(), params.tensors(), tensor_lists[2], tensor_lists[3], {}, control);
  params.write_back(noop_flag);
  unscale(tensor_lists[0], inv_scale, noop_flag);
}

void multi_tensor_adam_capturable_master_cuda(int chunk_size, at::Tensor noop_flag,
                                              std::vector<std::vector<at::Tensor>> tensor_lists, at::Tensor lr,
                                              const float beta1, const float beta2, const float epsilon, at::Tensor step,
                                              const int mode, const int bias_correction, const float weight_decay,
                                              at::Tensor inv_scale) {
  const char* const op = "multi_tensor_adam_capturable_master_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"grads", Use::write, kAlsoDouble},
               {"params", Use::write, kAlsoDouble},
               {"exp_avgs", Use::write},
               {"exp_avg_sqs", Use::write},
               {"masters", Use::write}});
  kernels::AdamControl control;
  control.found_inf = noop_flag;
  control.weight_decay = weight_decay;
  control.adam_w_mode = choice(op, "mode", mode);
  amp_C::detail::set_device_moments(op, control, noop_flag.device(), beta1, beta2, epsilon, step, bias_correction, lr,
                                    inv_scale);
  const Float32List grads(tensor_lists[0]), params(tensor_lists[1]);
  kernels::multi_tensor_adam(grads.tensors(), tensor_lists[4], tensor_lists[2], tensor_lists[3], params.tensors(), control);
  params.write_back(noop_flag);
  unscale(tensor_lists[0], inv_scale, noop_flag);
}
