#include "kernels/optimizers.h"

#include <ATen/core/grad_mode.h>

#include "kernels/cpu/optimizers.h"
#include "kernels/update.h"

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
