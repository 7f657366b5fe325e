#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace apex::contrib {

/// Scales the gradients of the parameters in place so that their total norm of order `norm_type`, as if they were one vector,
/// is at most `max_norm`; answers the norm from before: a scalar on the device of the first gradient, float32, or float64 where
/// a gradient is. The coefficient is `max_norm / (norm + 1e-6)`, at most 1; with a norm that is not finite gradients become 0
/// or NaN, unless `error_if_nonfinite`.
///
/// Parameters without a gradient, or with one of no elements, are left out, and a tied one counts once; where none is left, the
/// answer is 0, on the CPU. Gradients: float16, bfloat16, float32 and float64 of any shape on any device, in any mix. Where all
/// of them are float16, bfloat16 or float32 and fill their memory, the norms of order 2 and infinity take one pass over them
/// and scaling another, each one launch a device; other orders, dtypes and layouts go by LibTorch's operators, tensor by
/// tensor, with powers and sums in float64. Waits for a device only with `error_if_nonfinite`, and where some gradients are on
/// the CPU and some are not. With amp: after the `scale_loss` block, on `amp::master_params(opt)`, or
/// `amp::clip_grad_norm_(opt, max_norm)` in its place.
///
/// Errors: ValueError for a `max_norm` or `norm_type` that is NaN, a negative `max_norm`, a `norm_type` of 0, whose count of
/// values no scaling changes (Apex and PyTorch take it, and count gradients), and for a sparse gradient; RuntimeError with
/// `error_if_nonfinite` for a norm that is not finite, before any gradient is changed.
/// Apex: `apex.contrib.clip_grad.clip_grad_norm_`, which fuses float16 and float32 gradients of one GPU and order 2.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);
at::Tensor clip_grad_norm_(const at::Tensor& parameter, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);

}  // namespace apex::contrib

namespace apex::contrib::xentropy {

/// Softmax cross entropy with label smoothing, a loss for each row. Forward and backward read the logits once each, and between
/// them only the logits and one number a row are kept: no matrix of probabilities.
/// Apex: `apex.contrib.xentropy.SoftmaxCrossEntropyLoss`.
struct SoftmaxCrossEntropyLoss {
  /// `logits`: [rows, classes], float16, bfloat16, float32 or float64, any layout. `labels`: [rows], int64, on the same device.
  /// Answers [rows]: `(1 - smoothing) (lse - x[label]) + smoothing (lse - mean(x))` with lse the logarithm of the sum of
  /// exp(x), in the dtype of the logits, or in float32 with `half_to_float`. The loss and the gradient of rows whose label is
  /// `padding_idx` are 0: as in Apex that is class 0 unless another one, or no class at all (-100), is given.
  ///
  /// Arithmetic is float32, sums are float64; for float64 logits all is float64. Devices: the CPU, and CUDA in builds with
  /// CUDA. Under O1 and O4 it computes with the logits as they come, as Apex's does. The same bits at any number of threads.
  ///
  /// Errors, before anything is computed: RuntimeError for other shapes, dtypes or devices, for no classes, and for
  /// `half_to_float` with logits that do not have 16 bits; ValueError for a smoothing outside of 0 ... 1; IndexError for a CPU
  /// label that is neither a class nor `padding_idx`. On CUDA such a row's loss and gradient are NaN: looking would wait for
  /// the device. NotImplementedError where the backward pass is differentiated.
  static at::Tensor apply(const at::Tensor& logits, const at::Tensor& labels, double smoothing = 0.0, int64_t padding_idx = 0,
                          bool half_to_float = false);
};

}  // namespace apex::contrib::xentropy

// From apex.contrib, for LibTorch: gradient clipping and softmax cross entropy with fused kernels.
