#include "kernels/cuda/multi_tensor_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda/run.h"
#include "kernels/moved_to.h"

namespace apex::kernels::cuda {
namespace {

at::TensorOptions on(c10::Device device, at::ScalarType dtype) { return at::TensorOptions().device(device).dtype(dtype); }

// A flag on `device` for kernels to raise: found_inf itself, or a flag that deliver() passes on to it.
class Flag {
 public:
  Flag(const at::Tensor& found_inf, c10::Device device)
      : found_inf_(found_inf), here_(found_inf.device() == device ? found_inf : at::zeros({1}, on(device, at::kInt))) {}

  int32_t* address() const { return here_.mutable_data_ptr<int32_t>(); }

  void deliver() const {
    if (here_.is_same(found_inf_)) return;
    const at::Tensor there = moved_to(found_inf_.device(), here_);
    found_inf_.masked_fill_(there.ne(0).view_as(found_inf_), 1);
  }

 private:
  const at::Tensor& found_inf_;
  at::Tensor here_;
};

using NormTensors = std::tuple<at::Tensor, at::Tensor>;

// An undefined factor counts as 1. The host reads a factor on another device at once.
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
  // A copy, since the next sums over the same tensors overwrite these.
  return at::from_blob(table.row_sums(0), {table.count}, on(call.device, at::kDouble)).clone();
}

// The value on the CPU or on `device`, where the driver can read it without waiting for another device.
at::Tensor within_reach(c10::Device device, const at::Tensor& value) {
  return value.defined() && value.is_cpu() ? value : moved_to(device, value);
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

void update_scale(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdate& update) {
  const c10::Device device = tensors.scale.device();
  const LossScaleAddresses addresses = {
      tensors.scale.mutable_data_ptr<float>(), tensors.growth_tracker.mutable_data_ptr<int32_t>(),
      tensors.hysteresis_tracker.mutable_data_ptr<int32_t>(), found_inf.const_data_ptr<int32_t>()};
  run_update_scale(device, update, addresses);
}

}  // namespace apex::kernels::cuda
