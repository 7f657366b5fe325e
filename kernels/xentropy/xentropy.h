#pragma once

#include <ATen/core/Tensor.h>

// Softmax cross entropy: losses of rows of logits, for which each row is read twice, at once, and the gradient, in one pass
// over memory. Between the two only one number a row is kept.
//
// Logits: [rows, classes], contiguous, float16, bfloat16, float32 or float64; labels: [rows], contiguous, int64. Arithmetic is
// float32, for float64 float64; sums are float64 in any case. Devices: the CPU, and CUDA in builds with CUDA, on the current
// stream. No synchronisation. Rows whose label is `padding` have loss and gradient 0 and are not read. The order of sums
// depends on the number of classes alone: the same bits at any number of threads, on any instruction set. A label that is no
// class: loss and gradient are NaN; labels are the caller's to check, as all else is here.
namespace apex::kernels {

struct CrossEntropyTargets {
  at::Tensor labels;
  double smoothing;
  int64_t padding;
};

struct CrossEntropy {
  at::Tensor losses;       // [rows], of the dtype asked for
  at::Tensor log_sum_exp;  // [rows], of the type of the arithmetic
};

CrossEntropy cross_entropy_forward(const at::Tensor& logits, const CrossEntropyTargets& targets, at::ScalarType losses_dtype);

// The gradient of the logits, of their dtype. `grad_losses`: [rows], contiguous, of the dtype of the losses.
at::Tensor cross_entropy_backward(const at::Tensor& grad_losses, const at::Tensor& logits, const at::Tensor& log_sum_exp,
                                  const CrossEntropyTargets& targets);

}  // namespace apex::kernels

// What the drivers are given: allocated outputs, and at least one row and one class.
namespace apex::kernels::xentropy {

struct ForwardCall {
  at::Tensor logits;
  CrossEntropyTargets targets;
  CrossEntropy out;
};

struct BackwardCall {
  at::Tensor grad_losses, logits, log_sum_exp;
  CrossEntropyTargets targets;
  at::Tensor grad_logits;
};

}  // namespace apex::kernels::xentropy
