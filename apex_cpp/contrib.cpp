#include <apex_cpp/contrib.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include "kernels/multi_tensor.h"
#include "kernels/xentropy/xentropy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

namespace apex::contrib {
namespace {

std::vector<at::Tensor> grads_of(const std::vector<at::Tensor>& parameters) {
  const auto each_once = amp::detail::unique_tensors(parameters);
  amp::detail::separate_grads(each_once);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : each_once) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "clip_grad_norm_: the gradient of a parameter of shape ",
                      parameter.sizes(), " has layout ", grad.layout(),
                      ". Make the embedding dense (sparse=false), or leave the parameter out.");
    TORCH_CHECK_VALUE(amp::detail::is_writable(grad), "clip_grad_norm_: the gradient of a parameter of shape ",
                      parameter.sizes(),
                      " repeats elements in memory or was made in inference mode, so it cannot be scaled in place. Give the "
                      "parameter a clone() of it.");
    if (grad.numel() > 0) grads.push_back(grad.detach());
  }
  return grads;
}

bool have_kernels(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto has_kernel = [](const at::Tensor& grad) {
    return amp::detail::is_amp_float(grad.scalar_type()) && grad.is_non_overlapping_and_dense() && !grad.is_neg();
  };
  return (norm_type == 2 || std::isinf(norm_type)) && norm_type > 0 && std::all_of(grads.begin(), grads.end(), has_kernel);
}

at::Tensor norm_by_kernels(const std::vector<at::Tensor>& grads, double norm_type, const at::Tensor& flag) {
  const auto norms = norm_type == 2 ? kernels::multi_tensor_l2norm : kernels::multi_tensor_maxnorm;
  return std::get<0>(norms(flag, grads, /*per_tensor=*/false));
}

// Takes powers and sums in float64: float16 would overflow, and a float32 sum of ones stops at 2^24.
at::Tensor norm64(const at::Tensor& grad, double norm_type) {
  const auto dtype = grad.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::linalg_vector_norm(grad, norm_type, /*dim=*/std::nullopt, /*keepdim=*/false, dtype);
}

at::Tensor norm_by_operators(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto is_double = [](const at::Tensor& grad) { return at::toRealValueType(grad.scalar_type()) == at::kDouble; };
  const auto dtype = std::any_of(grads.begin(), grads.end(), is_double) ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : grads) norms.push_back(norm64(grad, norm_type).to(grads.front().device()));
  return norm64(at::stack(norms), norm_type).to(dtype).reshape({1});
}

// Multiplies in the coefficient's precision: rounded to 16 bits, the coefficient could become 0.
void scale(at::Tensor grad, const at::Tensor& coefficient) {
  const auto dtype = c10::promoteTypes(grad.scalar_type(), coefficient.scalar_type());
  at::mul_out(grad, grad.to(dtype), coefficient.to(grad.device()).squeeze(0));
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm is ", max_norm, ". It must be a number, and not negative.");
  TORCH_CHECK_VALUE(!std::isnan(norm_type) && norm_type != 0, "clip_grad_norm_: norm_type is ", norm_type,
                    ". Use 2, infinity or another order of a norm. Order 0 counts values, which scaling does not change.");
  const at::NoGradGuard no_grad;
  const auto grads = grads_of(parameters);
  if (grads.empty()) return at::zeros({});
  const bool fused = have_kernels(grads, norm_type);
  const at::Tensor flag = amp::detail::unread_flag(grads.front());
  const at::Tensor norm = fused ? norm_by_kernels(grads, norm_type, flag) : norm_by_operators(grads, norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm.item<double>()), "clip_grad_norm_: the total norm of order ", norm_type,
              " of the gradients is ", norm.item<double>(),
              ", so they cannot be clipped. Skip the step, or pass error_if_nonfinite=false to scale them all the same.");
  const at::Tensor coefficient = norm.add(amp::detail::kClipEpsilon).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  if (fused) {
    kernels::multi_tensor_unscale(flag, grads, grads, coefficient);
  } else {
    for (const at::Tensor& grad : grads) scale(grad, coefficient);
  }
  return norm.squeeze(0);
}

at::Tensor clip_grad_norm_(const at::Tensor& parameter, double max_norm, double norm_type, bool error_if_nonfinite) {
  return clip_grad_norm_(std::vector<at::Tensor>{parameter}, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace apex::contrib

namespace apex::contrib::xentropy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "SoftmaxCrossEntropyLoss";

void check_logits(const at::Tensor& logits, bool half_to_float) {
  TORCH_CHECK(logits.defined() && logits.dim() == 2, kName, ": logits must have shape [rows, classes]",
              logits.defined() ? c10::str(", not ", logits.sizes(), ". Use view({-1, classes}).") : ", but are undefined.");
  const auto dtype = logits.scalar_type();
  TORCH_CHECK(amp::detail::is_real_float(dtype), kName, ": logits are ", dtype,
              ". Convert them to float16, bfloat16, float32 or float64.");
  TORCH_CHECK(logits.size(1) > 0, kName, ": logits of shape ", logits.sizes(), " have no classes.");
  TORCH_CHECK(!half_to_float || amp::detail::is_low_precision(dtype), kName,
              ": half_to_float is for float16 and bfloat16 logits, but the logits are ", dtype,
              ". Leave it out: their losses have the dtype of the logits.");
}

void check_labels(const at::Tensor& labels, const at::Tensor& logits) {
  TORCH_CHECK(labels.defined() && labels.dim() == 1, kName, ": labels must have shape [rows]",
              labels.defined() ? c10::str(", not ", labels.sizes(), ". Use view(-1).") : ", but are undefined.");
  TORCH_CHECK(labels.scalar_type() == at::kLong, kName, ": labels are ", labels.scalar_type(), ". Use to(torch::kLong).");
  TORCH_CHECK(labels.size(0) == logits.size(0), kName, ": there are ", labels.size(0), " labels for logits of shape ",
              logits.sizes(), ".");
  TORCH_CHECK(labels.device() == logits.device(), kName, ": labels are on ", labels.device(), " and logits on ",
              logits.device(), ". Move one of them with to(device).");
}

void check_classes(const at::Tensor& labels, int64_t classes, int64_t padding_idx) {
  if (!labels.is_cpu()) return;
  const auto* const values = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    TORCH_CHECK_INDEX(values[i] == padding_idx || (values[i] >= 0 && values[i] < classes), kName, ": label ", i, " is ",
                      values[i], ", but there are ", classes, " classes and padding_idx is ", padding_idx, ".");
  }
}

kernels::CrossEntropyTargets saved_targets(AutogradContext* ctx, const at::Tensor& labels) {
  return {labels, ctx->saved_data.at("smoothing").toDouble(), ctx->saved_data.at("padding").toInt()};
}

// A Function of its own, so that differentiating the backward pass throws an error instead of giving a wrong result.
struct LossBackward : torch::autograd::Function<LossBackward> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& grad_losses, const at::Tensor& logits,
                            const at::Tensor& log_sum_exp, const kernels::CrossEntropyTargets& targets) {
    return kernels::cross_entropy_backward(grad_losses.contiguous(), logits, log_sum_exp, targets);
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "SoftmaxCrossEntropyLoss: the fused backward pass cannot be differentiated. For second derivatives use "
                    "torch::nn::functional::cross_entropy.");
  }
};

struct Loss : torch::autograd::Function<Loss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const kernels::CrossEntropyTargets& targets) {
    const at::Tensor x = logits.contiguous();
    const auto found = kernels::cross_entropy_forward(x, targets);
    ctx->save_for_backward({x, targets.labels, found.log_sum_exp});
    ctx->saved_data["smoothing"] = targets.smoothing;
    ctx->saved_data["padding"] = targets.padding;
    return found.losses;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {LossBackward::apply(grads[0], saved[0], saved[2], saved_targets(ctx, saved[1])), at::Tensor()};
  }
};

}  // namespace

at::Tensor SoftmaxCrossEntropyLoss::apply(const at::Tensor& logits, const at::Tensor& labels, double smoothing,
                                          int64_t padding_idx, bool half_to_float) {
  check_logits(logits, half_to_float);
  check_labels(labels, logits);
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, kName, ": smoothing is ", smoothing, ". It must be from 0 to 1.");
  const at::Tensor dense_labels = labels.contiguous();
  check_classes(dense_labels, logits.size(1), padding_idx);
  return Loss::apply(logits, kernels::CrossEntropyTargets{dense_labels, smoothing, padding_idx});
}

}  // namespace apex::contrib::xentropy
