#include "kernels/optimizers.h"

#include "kernels/cpu/pass.h"
#include "kernels/update.h"

#include <ATen/core/grad_mode.h>

// Each update names its lists and hands its rule to both drivers: to the CPU's as coefficients, to the CUDA driver as an Op,
// which computes the same coefficients on the device.

namespace apex::kernels {

using plan::Access;

void multi_tensor_sgd(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers, at::TensorList model_params,
                      const SgdSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const bool has_momentum = settings.momentum != 0;
  std::vector<plan::TensorList> lists = {{"grads", grads, Access::read}, {"params", params, Access::write}};
  if (has_momentum) lists.push_back({"momentum_buffers", momentum_buffers, Access::write});
  const Update update("multi_tensor_sgd", std::move(lists), model_params, settings, tensors);
  const auto on_cpu = [&](const plan::Group& group) {
    const bool half_params = group.dtypes[kParams] == at::kHalf;
    const SgdSettings now = update.current(settings);
    has_momentum ? void(cpu::run_pass(group, rules::momentum_sgd(now, half_params), update.copies()))
                 : void(cpu::run_pass(group, rules::plain_sgd(now, half_params), update.copies()));
  };
  const auto on_cuda = [&](const cuda::Call& call) {
    const rules::StepAddresses addresses = update.addresses(call.device);
    has_momentum ? run_on_cuda(update, call, cuda::MomentumSgd{{{settings, addresses}}})
                 : run_on_cuda(update, call, cuda::PlainSgd{{{settings, addresses}}});
  };
  update.run(on_cpu, on_cuda);
}

namespace {

// Whether the moments of a call are codes. All or none are.
bool have_codes(const char* op, at::TensorList exp_avgs, at::TensorList exp_avg_sqs) {
  size_t found = 0;
  for (const at::TensorList list : {exp_avgs, exp_avg_sqs}) {
    for (const at::Tensor& moment : list) found += plan::is_code(moment.scalar_type());
  }
  TORCH_CHECK(found == 0 || found == 2 * exp_avgs.size(), op, ": ", found, " of the ", 2 * exp_avgs.size(),
              " moments are codes of 8 bits and the others values. Make one call for each kind.");
  return found != 0;
}

}  // namespace

void multi_tensor_adam(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                       at::TensorList model_params, const AdamSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<plan::TensorList> lists = {{"grads", grads, Access::read},
                                         {"params", params, Access::write},
                                         {"exp_avgs", exp_avgs, Access::write},
                                         {"exp_avg_sqs", exp_avg_sqs, Access::write}};
  lists[rules::Adam::kMean].takes_codes = lists[rules::Adam::kSquare].takes_codes = true;
  const Update update("multi_tensor_adam", std::move(lists), model_params, settings, tensors);
  const auto on_cpu = [&](const plan::Group& group) {
    const AdamSettings now = update.current(settings);
    const auto is_bfloat16 = [&](size_t list) { return group.dtypes[list] == at::kBFloat16; };
    const rules::Adam rule =
        rules::for_dtypes(rules::adam(now), is_bfloat16(kParams) && !update.splits(), is_bfloat16(rules::Adam::kMean));
    cpu::run_pass(group, rule, update.copies(), now.rounding());
  };
  const bool has_codes = have_codes("multi_tensor_adam", exp_avgs, exp_avg_sqs);
  update.run(on_cpu, [&](const cuda::Call& call) {
    const cuda::Adam op{{{settings, update.addresses(call.device)}}};
    if (!has_codes) return run_on_cuda(update, call, op);
    update.splits() ? cuda::run_update(call, cuda::Coded<cuda::Split<cuda::Adam>>{{op}})
                    : cuda::run_update(call, cuda::Coded<cuda::Adam>{op});
  });
  update.count_step();
}

void multi_tensor_adagrad(at::TensorList grads, at::TensorList params, at::TensorList sums, at::TensorList model_params,
                          const AdagradSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_adagrad",
                      {{"grads", grads, Access::read}, {"params", params, Access::write}, {"sums", sums, Access::write}},
                      model_params, settings, tensors);
  update.run([&](const plan::Group& group) { cpu::run_pass(group, rules::adagrad(update.current(settings)), update.copies()); },
             [&](const cuda::Call& call) {
               run_on_cuda(update, call, cuda::Adagrad{{{settings, update.addresses(call.device)}}});
             });
}

void multi_tensor_lion(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList model_params,
                       const LionSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update(
      "multi_tensor_lion",
      {{"grads", grads, Access::read}, {"params", params, Access::write}, {"exp_avgs", exp_avgs, Access::write}}, model_params,
      settings, tensors);
  update.run([&](const plan::Group& group) { cpu::run_pass(group, rules::lion(update.current(settings)), update.copies()); },
             [&](const cuda::Call& call) {
               run_on_cuda(update, call, cuda::Lion{{{settings, update.addresses(call.device)}}});
             });
}

void multi_tensor_schedule_free_adamw(at::TensorList grads, at::TensorList params, at::TensorList zs,
                                      at::TensorList exp_avg_sqs, at::TensorList model_params,
                                      const ScheduleFreeSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_schedule_free_adamw",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::write},
                       {"zs", zs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write}},
                      model_params, settings, tensors);
  update.run(
      [&](const plan::Group& group) {
        cpu::run_pass(group, rules::schedule_free_adamw(update.current(settings)), update.copies());
      },
      [&](const cuda::Call& call) {
        run_on_cuda(update, call, cuda::ScheduleFreeAdamW{{{settings, update.addresses(call.device)}}});
      });
  update.count_step();
}

void multi_tensor_lerp(at::TensorList ends, at::TensorList params, at::TensorList model_params, const LerpSettings& settings,
                       const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_lerp", {{"ends", ends, Access::read}, {"params", params, Access::write}}, model_params,
                      settings, tensors);
  update.run([&](const plan::Group& group) { cpu::run_pass(group, rules::lerp(update.current(settings)), update.copies()); },
             [&](const cuda::Call& call) {
               run_on_cuda(update, call, cuda::Lerp{{{settings, update.addresses(call.device)}}});
             });
}

}  // namespace apex::kernels
