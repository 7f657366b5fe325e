#include <apex_cpp/amp/compute/batch_norm.h>

#include <ATen/Operators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/compute/widen.h>

#include "kernels/layers/layers.h"

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;
using at::Tensor;
using c10::DispatchKeySet;
using OptionalTensor = std::optional<Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using kernels::BatchNormShape;

bool is_absent(const OptionalTensor& tensor) { return !tensor || !tensor->defined(); }

bool has_channels_last(const Tensor& x) {
  if (x.dim() == 4) return x.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (x.dim() == 5) return x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  return x.dim() == 2 && x.is_contiguous();
}

/// The tensors of one batch norm, forward or backward.
struct BatchNorm {
  const Tensor& x;
  const OptionalTensor &weight, &running_mean, &running_var;

  BatchNormShape shape() const { return {x.numel() / x.size(1), x.size(1)}; }

  /// FP32 on the CPU, a value of each channel.
  bool is_of_channels(const OptionalTensor& tensor) const {
    return tensor && tensor->defined() && tensor->is_cpu() && tensor->layout() == at::kStrided &&
           tensor->scalar_type() == at::kFloat && tensor->sizes() == at::IntArrayRef{x.size(1)};
  }

  bool has_kernel() const {
    if (x.is_nested() || x.dim() < 2 || x.numel() == 0 || x.numel() == x.size(1) || !is_of_channels(weight)) return false;
    const bool has_statistics = is_of_channels(running_mean) && is_of_channels(running_var);
    if (!has_statistics && !(is_absent(running_mean) && is_absent(running_var))) return false;
    Operands operands;
    operands.add(x);
    return type_with_own_kernels(operands) == at::kBFloat16 && has_channels_last(x) && kernels::has_batch_norm(shape());
  }
};

void update_running(const BatchNorm& call, const kernels::BatchStatistics& batch, double momentum) {
  if (is_absent(call.running_mean)) return;
  const auto rows = static_cast<double>(call.shape().rows);
  kernels::update_running(*call.running_mean, batch.mean, 1, momentum);
  kernels::update_running(*call.running_var, batch.variance, rows / (rows - 1), momentum);
}

ThreeTensors batch_norm(DispatchKeySet keys, const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
                        double eps) {
  const BatchNorm call{x, weight, running_mean, running_var};
  if (!call.has_kernel() || !call.is_of_channels(bias) || (!training && is_absent(running_mean))) {
    return op::native_batch_norm::redispatch(keys & kBelowComputeKey, x, weight, bias, running_mean, running_var, training,
                                             momentum, eps);
  }
  Tensor y = at::empty_like(x);
  if (!training) {
    kernels::batch_norm_forward(call.shape(), x, {*weight, *bias, *running_mean, kernels::inverse_std(*running_var, eps)}, y);
    return {y, at::empty({0}, weight->options()), at::empty({0}, weight->options())};
  }
  const auto batch = kernels::batch_statistics(call.shape(), x);
  update_running(call, batch, momentum);
  const Tensor inv_std = kernels::inverse_std(batch.variance, eps);
  kernels::batch_norm_forward(call.shape(), x, {*weight, *bias, batch.mean, inv_std}, y);
  return {y, batch.mean, inv_std};
}

ThreeTensors batch_norm_backward(DispatchKeySet keys, const Tensor& grad_y, const Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                 const OptionalTensor& save_mean, const OptionalTensor& save_inv_std, bool training, double eps,
                                 std::array<bool, 3> needs) {
  const BatchNorm call{x, weight, running_mean, running_var};
  const bool has_statistics =
      training ? call.is_of_channels(save_mean) && call.is_of_channels(save_inv_std) : call.is_of_channels(running_mean);
  if (!call.has_kernel() || !has_statistics || !grad_y.is_cpu() || grad_y.scalar_type() != at::kBFloat16 ||
      grad_y.sizes() != x.sizes()) {
    return op::native_batch_norm_backward::redispatch(keys & kBelowComputeKey, grad_y, x, weight, running_mean, running_var,
                                                      save_mean, save_inv_std, training, eps, needs);
  }
  const Tensor grad_x = needs[0] ? at::empty_like(x) : Tensor();
  const Tensor mean = training ? *save_mean : *running_mean;
  const Tensor inv_std = training ? *save_inv_std : kernels::inverse_std(*running_var, eps);
  const auto grads = kernels::batch_norm_backward(call.shape(), grad_y.contiguous(x.suggest_memory_format()), x,
                                                  {*weight, Tensor(), mean, inv_std}, training, grad_x);
  return {grad_x, needs[1] ? grads.weight : Tensor(), needs[2] ? grads.bias : Tensor()};
}

}  // namespace

void register_batch_norm(torch::Library& aten) {
  aten.impl("native_batch_norm", TORCH_FN(batch_norm));
  aten.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
}

}  // namespace apex::amp::detail
