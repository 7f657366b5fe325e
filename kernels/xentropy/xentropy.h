#pragma once

#include <ATen/core/Tensor.h>

// Softmax cross entropy. The forward pass computes the loss of every row and reads each row twice in succession; the backward
// pass computes the gradient in one pass over memory. Only one number per row is saved between them.
//
// Logits: [rows, classes], contiguous, float16, bfloat16, float32 or float64; labels: [rows], contiguous, int64. Arithmetic is
// float32, or float64 for float64 logits, and so are the losses; sums are always float64. Devices: the CPU, and CUDA in builds
// with CUDA, on the current stream without synchronization. Rows whose label is `padding` have loss and gradient 0 and are not
// read. The order of sums depends on the number of classes alone, so results have the same bits at any number of threads and
// with any instruction set. If a label is not a class, loss and gradient are NaN. The caller checks labels and all other
// arguments.
namespace apex::kernels {

struct CrossEntropyTargets {
  at::Tensor labels;
  double smoothing;
  int64_t padding;
};

struct CrossEntropy {
  at::Tensor losses, log_sum_exp;  // [rows], in the type of the arithmetic
};

CrossEntropy cross_entropy_forward(const at::Tensor& logits, const CrossEntropyTargets& targets);

// Returns the gradient of the logits, in their dtype. `grad_losses`: [rows], contiguous, in the dtype of the losses.
at::Tensor cross_entropy_backward(const at::Tensor& grad_losses, const at::Tensor& logits, const at::Tensor& log_sum_exp,
                                  const CrossEntropyTargets& targets);

}  // namespace apex::kernels

// Arguments of the drivers. Outputs are allocated, and there is at least one row and one class.
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

// The driver for CUDA tensors: one launch per pass, on the current stream.
namespace cuda {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace cuda
}  // namespace apex::kernels::xentropy
