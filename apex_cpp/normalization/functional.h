#pragma once

#include <ATen/core/Tensor.h>

/// Layer and RMS normalisation over the dimensions `normalized_shape` at the end of `input`, by fused kernels for the CPU and
/// for CUDA, one formula for both: the names and defaults of Apex's functions.
///
/// Shapes: `input` is [*, normalized_shape], contiguous or not (then it is copied), with any number of elements, also none;
/// `weight` and `bias` are shaped as `normalized_shape`. The output is contiguous.
/// Dtypes: float16, bfloat16, float32 and float64. Statistics and arithmetic are float32, and float64 for float64 input.
/// Gradients: of each of `input`, `weight` and `bias`, in its dtype. Weight and bias gradients are summed in an order that
/// depends on the shape alone, so that results have the same bits at any number of threads. There is no second derivative:
/// asking for one is a NotImplementedError. Devices: CPU and CUDA, on the current stream; nothing waits. Casts: within torch's
/// autocast of the device, float arguments are cast to its type first (NORM-06). Where O1 or O4 is in force these are layer
/// normalisations like `torch::layer_norm`: FP32. On O2's original model, float input follows a 16-bit weight. The
/// `mixed_dtype_` functions are made for mixes: only torch's autocast changes what they get. Errors: RuntimeError for shapes,
/// dtypes or devices that do not fit, ValueError for a negative eps, NotImplementedError for other devices and, in a build
/// without CUDA, for CUDA tensors. All before anything is computed. `memory_efficient`: see `FusedNormOptions`.
namespace apex::normalization {

at::Tensor fused_layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps = 1e-6,
                            bool memory_efficient = false);
/// `weight` and `bias` have the dtype of `input`, and so has the output.
at::Tensor fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   at::IntArrayRef normalized_shape, double eps = 1e-6, bool memory_efficient = false);
/// The output has the dtype of `weight` and `bias`; `input` has the same, or all are of float16, bfloat16 and float32.
at::Tensor mixed_dtype_fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                               at::IntArrayRef normalized_shape, double eps = 1e-6,
                                               bool memory_efficient = false);

at::Tensor fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps = 1e-6,
                          bool memory_efficient = false);
/// `weight` has the dtype of `input`, and so has the output.
at::Tensor fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef normalized_shape,
                                 double eps = 1e-6, bool memory_efficient = false);
/// The output has the dtype of `weight`; `input` has the same, or both are of float16, bfloat16 and float32.
at::Tensor mixed_dtype_fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight,
                                             at::IntArrayRef normalized_shape, double eps = 1e-6,
                                             bool memory_efficient = false);

/// RMS normalisation made of ATen operators: any device, any number of derivatives. `weight` may be undefined; a 16-bit one
/// decides the dtype of what it multiplies. Apex runs it for CPU tensors, here it is only by name.
at::Tensor manual_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const at::Tensor& weight, double eps);

}  // namespace apex::normalization
