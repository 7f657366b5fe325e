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
