#include "kernels/cuda/multi_tensor_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda/run.h"
#include "kernels/update.h"

namespace apex::kernels::cuda {
namespace {

at::TensorOptions on(c10::Device device, at::ScalarType dtype) { return at::TensorOptions().device(device).dtype(dtype); }

template <class Value>
const Value* address_if_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == device ? tensor.const_data_ptr<Value>() : nullptr;
}

template <class Value>
Value* writable_if_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == device ? tensor.mutable_data_ptr<Value>() : nullptr;
}

Control control_of(c10::Device device, const StepControl& control) {
  return {writable_if_on<int32_t>(device, control.found_inf), address_if_on<float>(device, control.grad_scale_tensor),
          address_if_on<float>(device, control.lr_tensor), nullptr};
}

Control with_step(c10::Device device, const MomentControl& control) {
  Control result = control_of(device, control);
  result.step = writable_if_on<int32_t>(device, control.step_tensor);
  return result;
}

// A flag on the device that kernels can raise for found_inf, which may be somewhere else.
class Flag {
 public:
  Flag(const at::Tensor& found_inf, c10::Device device)
      : found_inf_(found_inf), here_(found_inf.device() == device ? found_inf : at::zeros({1}, on(device, at::kInt))) {}

  int32_t* address() const { return here_.mutable_data_ptr<int32_t>(); }

  void deliver() const {
    if (here_.is_same(found_inf_)) return;
    found_inf_.masked_fill_(here_.to(found_inf_.device(), /*non_blocking=*/!found_inf_.is_cpu()).ne(0), 1);
  }

 private:
  const at::Tensor& found_inf_;
  at::Tensor here_;
};

using NormTensors = std::tuple<at::Tensor, at::Tensor>;

// An undefined factor is 1. One on another device is read now.
Factor factor_on(c10::Device device, const at::Tensor& factor) {
  if (!factor.defined()) return {};
  if (factor.device() == device) return {1.0, factor.const_data_ptr<float>()};
  return {factor.item<double>(), nullptr};
}

template <bool kL2>
Norms<kL2> norms_of(const at::Tensor& inv_scale, c10::Device device, const NormOutputs& outputs) {
  const Factor factor = factor_on(device, inv_scale);
  return {factor.value, factor.address, outputs};
}

template <bool kL2>
NormTensors norms(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale, bool per_tensor) {
  const auto count = static_cast<int64_t>(per_tensor ? call.plan->count : 0);
  const at::Tensor total = at::empty({1}, on(call.device, at::kFloat));
  const at::Tensor each = at::empty({count}, on(call.device, at::kFloat));
  const Flag flag(found_inf, call.device);
  const NormOutputs outputs = {total.mutable_data_ptr<float>(), per_tensor ? each.mutable_data_ptr<float>() : nullptr,
                               flag.address()};
  run_sum(call, norms_of<kL2>(inv_scale, call.device, outputs));
  flag.deliver();
  return {total, each};
}

template <bool kL2>
at::Tensor sums_by_index(const Call& call, const at::Tensor& inv_scale) {
  const Table table = run_sum(call, norms_of<kL2>(inv_scale, call.device, {nullptr, nullptr, nullptr}));
  // A copy: the next sums over the same tensors are left in the same place.
  return at::from_blob(table.row_sums(0), {table.count}, on(call.device, at::kDouble)).clone();
}

// The value, on the device or on the CPU: where it can be read without waiting for another device.
at::Tensor within_reach(c10::Device device, const at::Tensor& value) {
  return !value.defined() || value.is_cpu() ? value : value.to(device, /*non_blocking=*/true);
}

}  // namespace

void scale(const Call& call, const at::Tensor& found_inf, double factor) {
  const Flag flag(found_inf, call.device);
  run_update(call, Scale({factor, nullptr}, flag.address()));
  flag.deliver();
}

void unscale(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale) {
  const Flag flag(found_inf, call.device);
  const at::Tensor factor = within_reach(call.device, inv_scale);
  run_update(call, Scale(factor_on(call.device, factor), flag.address()));
  flag.deliver();
}

void check_finite(const Call& call, const at::Tensor& found_inf) {
  const Flag flag(found_inf, call.device);
  run_update(call, CheckFinite(flag.address()));
  flag.deliver();
}

void axpby(const Call& call, const at::Tensor& found_inf, double a, double b, CheckArg check) {
  const Flag flag(found_inf, call.device);
  run_update(call, Axpby(a, b, check != CheckArg::y, check != CheckArg::x, flag.address()));
  flag.deliver();
}

void copy(const Call& call) { run_update(call, Copy{}); }

NormTensors l2norm(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale, bool per_tensor) {
  return norms<true>(call, found_inf, within_reach(call.device, inv_scale), per_tensor);
}

NormTensors maxnorm(const Call& call, const at::Tensor& found_inf, bool per_tensor) {
  return norms<false>(call, found_inf, at::Tensor(), per_tensor);
}

at::Tensor sums_of_squares(const Call& call, const at::Tensor& inv_scale) {
  return sums_by_index<true>(call, within_reach(call.device, inv_scale));
}

at::Tensor max_magnitudes(const Call& call) { return sums_by_index<false>(call, at::Tensor()); }

void sgd(const Call& call, const SgdControl& control) {
  const Control on_device = control_of(call.device, control);
  if (control.momentum == 0) return run_update(call, PlainSgd{{{settings_of(control), on_device}}});
  run_update(call, MomentumSgd{{{settings_of(control), on_device}}});
}

void adam(const Call& call, const AdamControl& control) {
  run_update(call, Adam{{{settings_of(control), with_step(call.device, control)}}});
}

void adagrad(const Call& call, const AdagradControl& control) {
  run_update(call, Adagrad{{{settings_of(control), control_of(call.device, control)}}});
}

void novograd(const Call& call, const NovoGradControl& control, const at::Tensor& grad_norms) {
  const rules::NovoGradSettings settings = settings_of(control);
  const Control on_device = with_step(call.device, control);
  const at::Tensor next = at::empty({grad_norms.numel()}, grad_norms.options());
  float* const norms = next.mutable_data_ptr<float>();
  float* const running = grad_norms.mutable_data_ptr<float>();
  if (settings.l2) {
    run_sum(call, NovoGradNorms<true>{{settings, on_device}, running, norms});
  } else {
    run_sum(call, NovoGradNorms<false>{{settings, on_device}, running, norms});
  }
  run_update(call, NovoGrad{{{settings, on_device}}, norms, running});
}

void lamb_stage_1(const Call& call, const LambControl& control, const LambNorms& norms) {
  run_sum(call, LambStage1{{settings_of(control), with_step(call.device, control)},
                           address_if_on<float>(call.device, control.global_grad_norm),
                           norms.params.mutable_data_ptr<float>(),
                           norms.updates.mutable_data_ptr<float>()});
}

void lamb_stage_2(const Call& call, const LambControl& control, const LambNorms& norms) {
  run_update(call, LambStage2{{{settings_of(control), control_of(call.device, control)}},
                              norms.params.const_data_ptr<float>(),
                              norms.updates.const_data_ptr<float>()});
}

void larc(const Call& call, const LarcControl& control) {
  const rules::LarcSettings settings = settings_of(control);
  const Control on_device = control_of(call.device, control);
  const auto count = static_cast<int64_t>(call.plan->count);
  const at::Tensor norms = at::empty({2, count}, on(call.device, at::kFloat));
  float* const grads = norms.mutable_data_ptr<float>();
  run_sum(call, LarcNorms{{settings, on_device}, grads, grads + count});
  run_update(call, Larc{{{settings, on_device}}, grads, grads + count});
}

void update_scale(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control) {
  const c10::Device device = tensors.scale.device();
  const LossScaleAddresses addresses = {
      tensors.scale.mutable_data_ptr<float>(), tensors.growth_tracker.mutable_data_ptr<int32_t>(),
      tensors.hysteresis_tracker.mutable_data_ptr<int32_t>(), found_inf.const_data_ptr<int32_t>()};
  run_update_scale(device, scale_update_rule(control), addresses);
}

}  // namespace apex::kernels::cuda
