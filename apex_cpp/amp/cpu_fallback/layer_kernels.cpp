#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>
#include <apex_cpp/amp/cpu_fallback/widen.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include "kernels/layers/layers.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/Operators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

  /// True for an FP32 CPU tensor with one value per channel.
  bool is_of_channels(const OptionalTensor& tensor) const {
    return tensor && tensor->defined() && tensor->is_cpu() && tensor->layout() == at::kStrided &&
           tensor->scalar_type() == at::kFloat && tensor->sizes() == at::IntArrayRef{x.size(1)};
  }

  bool has_kernel() const {
    if (x.is_nested() || x.dim() < 2 || x.numel() == x.size(1) || !is_of_channels(weight)) return false;
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
    return op::native_batch_norm::redispatch(keys & kBelowCpuFallbackKey, x, weight, bias, running_mean, running_var, training,
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
    return op::native_batch_norm_backward::redispatch(keys & kBelowCpuFallbackKey, grad_y, x, weight, running_mean, running_var,
                                                      save_mean, save_inv_std, training, eps, needs);
  }
  const Tensor grad_x = needs[0] ? at::empty_like(x) : Tensor();
  const Tensor mean = training ? *save_mean : *running_mean;
  const Tensor inv_std = training ? *save_inv_std : kernels::inverse_std(*running_var, eps);
  const auto grads = kernels::batch_norm_backward(call.shape(), in_layout_of(grad_y, x), x, {*weight, Tensor(), mean, inv_std},
                                                  training, grad_x);
  return {grad_x, needs[1] ? grads.weight : Tensor(), needs[2] ? grads.bias : Tensor()};
}

}  // namespace

void register_batch_norm(torch::Library& aten) {
  aten.impl("native_batch_norm", TORCH_FN(batch_norm));
  aten.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
}

// Memory-bound layers on 16-bit CPU tensors: apex_cpp's kernels replace LibTorch's.

namespace {

// For fewer elements the checks cost more than the kernel saves.
constexpr int64_t kElementsWorthAKernel = 4096;

bool are_alike(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && a.strides() == b.strides(); }

// The one 16-bit type of the tensors, if apex_cpp's kernel is to be used and the first tensor is dense.
template <class... Tensors>
std::optional<c10::ScalarType> type_for_kernel(const Tensor& first, const Tensors&... others) {
  const auto low_type = first.scalar_type();
  if (!is_low_precision(low_type) || !((others.scalar_type() == low_type) && ...)) return std::nullopt;
  Operands operands;
  operands.add(first);
  (operands.add(others), ...);
  const auto type = type_with_own_kernels(operands);
  const bool is_worth_it = type && first.numel() >= kElementsWorthAKernel && first.is_non_overlapping_and_dense();
  return is_worth_it ? type : std::nullopt;
}

Tensor relu(DispatchKeySet keys, const Tensor& x) {
  if (!type_for_kernel(x)) return op::relu::redispatch(keys & kBelowCpuFallbackKey, x);
  Tensor y = at::empty_like(x);
  kernels::relu(x, y);
  return y;
}

Tensor& relu_(DispatchKeySet keys, Tensor& x) {
  if (!type_for_kernel(x)) return op::relu_::redispatch(keys & kBelowCpuFallbackKey, x);
  kernels::relu(x, x);
  return x;
}

// ReLU's gradient. A gradient of a mean over pixels has another layout than the input, which LibTorch handles slowly.
Tensor threshold_backward(DispatchKeySet keys, const Tensor& grad_y, const Tensor& x, const at::Scalar& threshold) {
  if (!type_for_kernel(x, grad_y) || !threshold.equal(0) || grad_y.sizes() != x.sizes()) {
    return op::threshold_backward::redispatch(keys & kBelowCpuFallbackKey, grad_y, x, threshold);
  }
  Tensor grad_x = at::empty_like(x);
  if (are_alike(grad_y, grad_x) && are_alike(x, grad_x)) {
    kernels::relu_backward(grad_y, x, grad_x);
  } else {
    grad_x.copy_(grad_y);
    kernels::relu_backward(grad_x, x, grad_x);
  }
  return grad_x;
}

bool is_sum_of_bfloat16(const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  return type_for_kernel(a, b) == at::kBFloat16 && are_alike(a, b) && alpha.equal(1);
}

// True if the tensors share all of their memory or none: LibTorch refuses to write to memory that it still reads.
bool may_write_beside(const Tensor& a, const Tensor& b) {
  const auto status = at::get_overlap_status(a, b);
  return status == at::MemOverlapStatus::No || status == at::MemOverlapStatus::Full;
}

Tensor add(DispatchKeySet keys, const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (!is_sum_of_bfloat16(a, b, alpha)) return op::add_Tensor::redispatch(keys & kBelowCpuFallbackKey, a, b, alpha);
  Tensor sum = at::empty_like(a);
  kernels::add(a, b, sum);
  return sum;
}

Tensor& add_(DispatchKeySet keys, Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (!is_sum_of_bfloat16(a, b, alpha) || !may_write_beside(a, b))
    return op::add__Tensor::redispatch(keys & kBelowCpuFallbackKey, a, b, alpha);
  kernels::add(a, b, a);
  return a;
}

void register_layer_kernels(torch::Library& aten) {
  aten.impl("relu", TORCH_FN(relu));
  aten.impl("relu_", TORCH_FN(relu_));
  aten.impl("threshold_backward", TORCH_FN(threshold_backward));
  aten.impl("add.Tensor", TORCH_FN(add));
  aten.impl("add_.Tensor", TORCH_FN(add_));
  register_batch_norm(aten);
}

const AtenKernels& layer_kernels() {
  static const AtenKernels kernels(kCpuFallbackKey, register_layer_kernels);
  return kernels;
}

[[maybe_unused]] const AtenKernels& layers_at_load = layer_kernels();

}  // namespace

void register_memory_bound_layers() { layer_kernels(); }

}  // namespace apex::amp::detail
