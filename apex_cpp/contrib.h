#pragma once

// From apex.contrib, for LibTorch: gradient clipping and softmax cross entropy with fused kernels.
#include <ATen/core/Tensor.h>

#include <vector>

namespace apex::contrib {

/// Scales the parameters' gradients in place so that their total norm of order `norm_type`, taken as one vector, is at most
/// `max_norm`. Returns the norm before scaling: a scalar on the device of the first gradient, float32, or float64 if a gradient
/// is float64. The coefficient is `max_norm / (norm + 1e-6)`, at most 1. If the norm is not finite, gradients become 0 or NaN,
/// unless `error_if_nonfinite` is set.
///
/// Parameters without a gradient, or with an empty gradient, are ignored, and a tied parameter counts once; without any
/// gradient the result is 0, on the CPU. Gradients may be float16, bfloat16, float32 and float64, of any shape, on any device,
/// in any mix. If all gradients are dense and float16, bfloat16 or float32, norms of order 2 and infinity take one pass over
/// them and scaling another, each with one launch per device. Other orders, dtypes and layouts use LibTorch's operators, tensor
/// by tensor, with powers and sums in float64. Waits for a device only with `error_if_nonfinite`, and if some gradients are on
/// the CPU and others are not. With amp: call it after the `scale_loss` block on `amp::master_params(opt)`, or use
/// `amp::clip_grad_norm_(opt, max_norm)`.
///
/// Errors: ValueError for a `max_norm` or `norm_type` that is NaN, for a negative `max_norm`, for a `norm_type` of 0, whose
/// count of values does not change by scaling (Apex and PyTorch accept it, and count gradients), and for a gradient that is
/// sparse, repeats elements in memory (`expand`), or was made in inference mode; RuntimeError with `error_if_nonfinite` for a
/// norm that is not finite. All come before any gradient is changed.
/// Apex: `apex.contrib.clip_grad.clip_grad_norm_`, which fuses float16 and float32 gradients of one GPU and order 2.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);
at::Tensor clip_grad_norm_(const at::Tensor& parameter, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);

}  // namespace apex::contrib

namespace apex::contrib::xentropy {

/// Softmax cross entropy with label smoothing, one loss per row. Backward reads the logits once. Forward reads each
/// row twice in succession, the second time from a cache; on CUDA a row of up to 1024 classes once. Only the logits and one
/// number per row are kept between them; no matrix of probabilities.
/// Apex: `apex.contrib.xentropy.SoftmaxCrossEntropyLoss`.
struct SoftmaxCrossEntropyLoss {
  /// `logits`: [rows, classes], float16, bfloat16, float32 or float64, any layout. `labels`: [rows], int64, on the same device.
  /// Returns [rows]: `(1 - smoothing) (lse - x[label]) + smoothing (lse - mean(x))` with lse the logarithm of the sum of
  /// exp(x), in float32, or in float64 for float64 logits. `half_to_float` changes nothing: as in Apex, 16-bit logits have
  /// float32 losses without it, too. Rows with the label `padding_idx` have loss 0 and gradient 0. As in Apex this is class 0
  /// by default; give another class, or -100 for none.
  ///
  /// Arithmetic is float32 and sums are float64; for float64 logits everything is float64. Devices: the CPU, and CUDA in builds
  /// with CUDA. As in Apex, O1 and O4 do not cast the logits. The bits do not depend on the number of threads.
  ///
  /// Errors, before anything is computed: RuntimeError for other shapes, dtypes or devices, for no classes, and for
  /// `half_to_float` with logits that are not 16-bit; ValueError for a smoothing outside [0, 1]; IndexError for a CPU label
  /// that is neither a class nor `padding_idx`. On CUDA the loss and gradient of such a row are NaN: a check would wait for the
  /// device. NotImplementedError if the backward pass is differentiated.
  static at::Tensor apply(const at::Tensor& logits, const at::Tensor& labels, double smoothing = 0.0, int64_t padding_idx = 0,
                          bool half_to_float = false);
};

}  // namespace apex::contrib::xentropy
