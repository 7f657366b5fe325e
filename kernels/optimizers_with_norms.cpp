#include "kernels/optimizers.h"

#include "kernels/cpu/pass.h"
#include "kernels/cpu/rows.h"
#include "kernels/multi_tensor.h"
#include "kernels/rules/norms.h"
#include "kernels/update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

// The updates of optimizers.cpp that need norms of whole tensors: NovoGrad, LAMB, LARC and LARS.
namespace apex::kernels {

using plan::Access;

namespace {

// Position of the updates in the lists of LAMB's first stage.
constexpr size_t kUpdates = 4;

at::Tensor no_flag() { return at::zeros({1}, at::kInt); }

at::Tensor l2_norms(at::TensorList list) { return std::get<1>(multi_tensor_l2norm(no_flag(), list, /*per_tensor=*/true)); }

// The norm of each gradient after grad_scale. On the CPU.
at::Tensor norms_of(at::TensorList grads, const NovoGradSettings& settings) {
  const at::Tensor scale = at::full({1}, settings.grad_scale, at::kFloat);
  if (settings.norm_type == NormType::l2) return std::get<1>(multi_tensor_unscale_l2norm(no_flag(), grads, scale, true));
  return std::get<1>(multi_tensor_maxnorm(no_flag(), grads, true)).mul(scale.abs());
}

// The running norms after this step, as float32.
at::Tensor next_norms(const at::Tensor& running, const at::Tensor& norms, const NovoGradSettings& settings) {
  at::Tensor result = at::empty({norms.numel()}, at::TensorOptions().dtype(at::kFloat));
  const float* before = running.const_data_ptr<float>();
  const float* now = norms.const_data_ptr<float>();
  for (int64_t i = 0; i < norms.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] = rules::next_norm(settings, before[i], now[i]);
  }
  return result;
}

// NovoGrad on the CPU: the running norms after this step. Undefined, with found_inf set, if one is not finite.
at::Tensor checked_next_norms(at::TensorList grads, const at::Tensor& running, const NovoGradSettings& settings,
                              const at::Tensor& found_inf) {
  const at::Tensor norms = next_norms(running, norms_of(grads, settings), settings);
  if (!found_inf.defined() || !norms.sub(norms).ne(0).any().item<bool>()) return norms;
  found_inf.fill_(1);
  return {};
}

// NovoGrad on one CUDA device, in two launches.
void novograd_on_cuda(const Update& update, const cuda::Call& call, const NovoGradSettings& settings,
                      const at::Tensor& grad_norms) {
  const rules::StepAddresses addresses = update.addresses(call.device);
  const at::Tensor next = at::empty({grad_norms.numel()}, grad_norms.options());
  float* const norms = next.mutable_data_ptr<float>();
  float* const running = grad_norms.mutable_data_ptr<float>();
  if (settings.norm_type == NormType::l2) {
    cuda::run_sum(call, cuda::NovoGradNorms<true>{{settings, addresses}, running, norms});
  } else {
    cuda::run_sum(call, cuda::NovoGradNorms<false>{{settings, addresses}, running, norms});
  }
  run_on_cuda(update, call, cuda::NovoGrad{{{settings, addresses}}, norms, running});
}

}  // namespace

void multi_tensor_novograd(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, const at::Tensor& grad_norms,
                           at::TensorList model_params, const NovoGradSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update(
      "multi_tensor_novograd",
      {{"grads", grads, Access::read}, {"params", params, Access::write}, {"exp_avgs", exp_avgs, Access::write}}, model_params,
      settings, tensors);
  update.check_norms("grad_norms", grad_norms);
  if (update.stopped()) return;
  const bool on_cpu = !cuda::handles(update.device());
  const NovoGradSettings now = on_cpu ? update.current(settings) : settings;
  const at::Tensor norms = on_cpu ? checked_next_norms(grads, grad_norms, now, tensors.found_inf) : grad_norms;
  if (!norms.defined()) return;
  update.run(
      [&](const plan::Group& group) {
        const float* const by_index = norms.const_data_ptr<float>();
        const auto rule_of = [&](const plan::TensorRow& row) { return rules::novograd(now, by_index[row.index]); };
        cpu::run_pass<rules::NovoGrad>(group, rule_of, update.copies());
      },
      [&](const cuda::Call& call) { novograd_on_cuda(update, call, settings, grad_norms); });
  on_cpu ? void(grad_norms.copy_(norms.view(grad_norms.sizes()))) : bump_versions(grad_norms);
  update.count_step();
}

namespace {

// Writes the roots of `squares`, one for each row of the group, to the tensors' indices in `norms`.
void write_norms(const plan::Group& group, const std::vector<double>& squares, const at::Tensor& norms) {
  for (size_t row = 0; row < squares.size(); ++row) {
    norms.mutable_data_ptr<float>()[group.rows[row].index] = rules::root_of_sum(squares[row]);
  }
}

// Runs a rule with two sums of squares, and writes their roots.
template <class Rule>
void run_norms(const plan::Group& group, const Rule& rule, bool splits, const at::Tensor& first, const at::Tensor& second) {
  const auto sums = cpu::run_pass(group, rule, splits);
  write_norms(group, cpu::row_sums<Rule>(group, sums, 0), first);
  write_norms(group, cpu::row_sums<Rule>(group, sums, 1), second);
}

// Two norms for each tensor, zeros.
template <class Norms>
Norms zero_norms(const Update& update) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(update.device());
  const auto count = static_cast<int64_t>(update.count());
  return {at::zeros({count}, options), at::zeros({count}, options)};
}

double value_on_cpu(const at::Tensor& global_grad_norm) {
  return global_grad_norm.defined() ? global_grad_norm.item<double>() : 0.0;
}

void lamb_stage_1_on_cpu(const plan::Group& group, const LambSettings& settings, const at::Tensor& global_grad_norm,
                         const LambNorms& norms) {
  const auto rule = rules::lamb_stage_1(settings, value_on_cpu(global_grad_norm), group.dtypes[kUpdates] == at::kHalf);
  run_norms(group, rule, /*splits=*/false, norms.params, norms.updates);
}

// The first stage on one CUDA device: for updates in a list of their own, or for a second stage that computes them again.
cuda::LambSums lamb_sums(const Update& update, const cuda::Call& call, const LambSettings& settings,
                         const at::Tensor& global_grad_norm, const LambNorms& norms) {
  const float* const norm = global_grad_norm.defined() ? global_grad_norm.const_data_ptr<float>() : nullptr;
  return {{settings, update.addresses(call.device)},
          norm,
          norms.params.mutable_data_ptr<float>(),
          norms.updates.mutable_data_ptr<float>()};
}

void split_lamb_on_cpu(const plan::Group& group, const LambSettings& settings, const at::Tensor& global_grad_norm,
                       const LambNorms& norms) {
  const auto first = rules::lamb_stage_1(settings, value_on_cpu(global_grad_norm), /*half_updates=*/false);
  run_norms(group, rules::LambSums{first}, /*splits=*/true, norms.params, norms.updates);
  const float* const of_params = norms.params.const_data_ptr<float>();
  const float* const of_updates = norms.updates.const_data_ptr<float>();
  const auto rule_of = [&](const plan::TensorRow& row) {
    return rules::LambFromMoments{first, rules::lamb_stage_2(settings, of_params[row.index], of_updates[row.index])};
  };
  cpu::run_pass<rules::LambFromMoments>(group, rule_of, /*copies=*/true);
}

}  // namespace

LambNorms multi_tensor_lamb_stage_1(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList updates, const at::Tensor& global_grad_norm,
                                    const LambSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_lamb_stage_1",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::read},
                       {"exp_avgs", exp_avgs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write},
                       {"updates", updates, Access::write}},
                      {}, settings, tensors);
  update.check_value("global_grad_norm", global_grad_norm, at::kFloat);
  if (update.stopped()) return {};
  const LambNorms norms = zero_norms<LambNorms>(update);
  update.run([&](const plan::Group& group) { lamb_stage_1_on_cpu(group, update.current(settings), global_grad_norm, norms); },
             [&](const cuda::Call& call) {
               cuda::run_sum(call, cuda::LambStage1{lamb_sums(update, call, settings, global_grad_norm, norms)});
             });
  update.count_step();
  return norms;
}

void multi_tensor_lamb_stage_2(at::TensorList updates, at::TensorList params, at::TensorList model_params,
                               const LambNorms& norms, const LambSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const StepSettings& without_step = settings;  // stage 1 has checked and counted the step
  const Update update("multi_tensor_lamb_stage_2", {{"updates", updates, Access::read}, {"params", params, Access::write}},
                      model_params, without_step, tensors);
  TORCH_INTERNAL_ASSERT(!update.splits(), "the second stage takes no remainders");
  if (update.stopped()) return;
  update.check_norms("norms.params", norms.params);
  update.check_norms("norms.updates", norms.updates);
  const float* const param_norms = norms.params.const_data_ptr<float>();
  const float* const update_norms = norms.updates.const_data_ptr<float>();
  update.run(
      [&](const plan::Group& group) {
        const LambSettings now = update.current(settings);
        const auto rule_of = [&](const plan::TensorRow& row) {
          return rules::lamb_stage_2(now, param_norms[row.index], update_norms[row.index]);
        };
        cpu::run_pass<rules::LambStage2>(group, rule_of, update.copies());
      },
      [&](const cuda::Call& call) {
        cuda::run_update(call, cuda::LambStage2{{{settings, update.addresses(call.device)}}, param_norms, update_norms});
      });
}

void multi_tensor_split_lamb(at::TensorList grads, at::TensorList params, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                             at::TensorList remainders, const at::Tensor& global_grad_norm, const LambSettings& settings,
                             const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_split_lamb",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::write},
                       {"exp_avgs", exp_avgs, Access::write},
                       {"exp_avg_sqs", exp_avg_sqs, Access::write}},
                      remainders, settings, tensors);
  TORCH_INTERNAL_ASSERT(update.splits() || params.empty(), "there are no remainders");
  for (const at::TensorList moments : {exp_avgs, exp_avg_sqs}) {
    for (const at::Tensor& moment : moments) {
      TORCH_INTERNAL_ASSERT(moment.scalar_type() == at::kFloat, "moments must be float32");
    }
  }
  update.check_value("global_grad_norm", global_grad_norm, at::kFloat);
  if (update.stopped()) return;
  const LambNorms norms = zero_norms<LambNorms>(update);
  update.run([&](const plan::Group& group) { split_lamb_on_cpu(group, update.current(settings), global_grad_norm, norms); },
             [&](const cuda::Call& call) {
               const cuda::LambSums first = lamb_sums(update, call, settings, global_grad_norm, norms);
               cuda::run_sum(call, cuda::Split<cuda::LambSums>{first});
               cuda::run_update(call, cuda::Split<cuda::LambFromMoments>{
                                          {{{{settings, first.addresses}}, first.param_norms, first.update_norms}}});
             });
  update.count_step();
}

void multi_tensor_larc(at::TensorList grads, at::TensorList params, const LarcSettings& settings, const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_larc", {{"grads", grads, Access::write}, {"params", params, Access::read}}, {}, settings,
                      tensors);
  if (update.stopped()) return;
  const bool on_cpu = !cuda::handles(update.device());
  const at::Tensor param_norms = on_cpu ? l2_norms(params) : at::Tensor();
  const at::Tensor grad_norms = on_cpu ? l2_norms(grads) : at::Tensor();
  update.run(
      [&](const plan::Group& group) {
        const LarcSettings now = update.current(settings);
        const float *of_params = param_norms.const_data_ptr<float>(), *of_grads = grad_norms.const_data_ptr<float>();
        cpu::run_pass<rules::Larc>(
            group, [&](const plan::TensorRow& row) { return rules::larc(now, of_params[row.index], of_grads[row.index]); });
      },
      [&](const cuda::Call& call) {
        const rules::StepAddresses addresses = update.addresses(call.device);
        const auto count = static_cast<int64_t>(call.plan->count);
        const at::Tensor norms = at::empty({2, count}, at::TensorOptions().device(call.device).dtype(at::kFloat));
        float* const of_grads = norms.mutable_data_ptr<float>();
        float* const of_params = of_grads + count;
        cuda::run_sum(call, cuda::LarcNorms{{{settings, addresses}, of_grads, of_params}});
        cuda::run_update(call, cuda::Larc{{{settings, addresses}}, of_grads, of_params});
      });
}

void multi_tensor_lars(at::TensorList grads, at::TensorList params, at::TensorList momentum_buffers,
                       at::TensorList model_params, const LarsNorms& norms, const LarsSettings& settings,
                       const StepTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Update update("multi_tensor_lars",
                      {{"grads", grads, Access::read},
                       {"params", params, Access::write},
                       {"momentum_buffers", momentum_buffers, Access::write}},
                      model_params, settings, tensors);
  const bool has_norms = norms.grads.defined() || norms.params.defined();
  if (has_norms) update.check_norms("norms.grads", norms.grads);
  if (has_norms) update.check_norms("norms.params", norms.params);
  if (update.stopped()) return;
  const LarsNorms used = has_norms ? norms : zero_norms<LarsNorms>(update);
  const bool takes_norms = settings.adapts && !has_norms;
  const float* const of_grads = used.grads.const_data_ptr<float>();
  const float* const of_params = used.params.const_data_ptr<float>();
  update.run(
      [&](const plan::Group& group) {
        const LarsSettings now = update.current(settings);
        const rules::LarsSums sums{rules::as_float(now.grad_scale)};
        if (takes_norms) run_norms(group, sums, update.splits(), used.grads, used.params);
        const auto rule_of = [&](const plan::TensorRow& row) {
          return rules::lars(now, of_params[row.index], of_grads[row.index]);
        };
        cpu::run_pass<rules::Lars>(group, rule_of, update.copies());
      },
      [&](const cuda::Call& call) {
        const rules::StepAddresses addresses = update.addresses(call.device);
        if (takes_norms) {
          run_sum_on_cuda(
              update, call,
              cuda::LarsNorms{
                  {{settings, addresses}, used.grads.mutable_data_ptr<float>(), used.params.mutable_data_ptr<float>()}});
        }
        run_on_cuda(update, call, cuda::Lars{{{settings, addresses}}, of_grads, of_params});
      });
}

}  // namespace apex::kernels
