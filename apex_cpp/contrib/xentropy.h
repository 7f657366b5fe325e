#pragma once

#include <ATen/core/Tensor.h>

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
