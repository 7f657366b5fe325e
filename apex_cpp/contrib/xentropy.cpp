#include <apex_cpp/contrib/xentropy.h>

#include <apex_cpp/amp/tensors/low_precision.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/xentropy/xentropy.h"

namespace apex::contrib::xentropy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "SoftmaxCrossEntropyLoss";

void check_logits(const at::Tensor& logits, bool half_to_float) {
  TORCH_CHECK(logits.defined() && logits.dim() == 2, kName, ": logits are to have shape [rows, classes]",
              logits.defined() ? c10::str(", not ", logits.sizes(), ". Use view({-1, classes}).") : ", and are undefined.");
  const auto dtype = logits.scalar_type();
  TORCH_CHECK(amp::detail::is_real_float(dtype), kName, ": logits are ", dtype,
              ". Convert them to float16, bfloat16, float32 or float64.");
  TORCH_CHECK(logits.size(1) > 0, kName, ": logits of shape ", logits.sizes(), " have no classes.");
  TORCH_CHECK(!half_to_float || amp::detail::is_low_precision(dtype), kName,
              ": half_to_float is for float16 and bfloat16 logits, and these are ", dtype,
              ". Leave it out: losses have their dtype.");
}

void check_labels(const at::Tensor& labels, const at::Tensor& logits) {
  TORCH_CHECK(labels.defined() && labels.dim() == 1, kName, ": labels are to have shape [rows]",
              labels.defined() ? c10::str(", not ", labels.sizes(), ". Use view(-1).") : ", and are undefined.");
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

// The backward pass as a function of its own, for what happens when it is differentiated in turn: an error, not a wrong answer.
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
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const kernels::CrossEntropyTargets& targets,
                            at::ScalarType losses_dtype) {
    const at::Tensor x = logits.contiguous();
    const auto found = kernels::cross_entropy_forward(x, targets, losses_dtype);
    ctx->save_for_backward({x, targets.labels, found.log_sum_exp});
    ctx->saved_data["smoothing"] = targets.smoothing;
    ctx->saved_data["padding"] = targets.padding;
    return found.losses;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {LossBackward::apply(grads[0], saved[0], saved[2], saved_targets(ctx, saved[1])), at::Tensor(), at::Tensor()};
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
  return Loss::apply(logits, kernels::CrossEntropyTargets{dense_labels, smoothing, padding_idx},
                     half_to_float ? at::kFloat : logits.scalar_type());
}

}  // namespace apex::contrib::xentropy
