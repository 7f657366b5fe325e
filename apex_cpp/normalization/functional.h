#pragma once

#include <ATen/core/Tensor.h>

/// Layer and RMS normalisation over the last dimensions of `input`, whose shape is `normalized_shape`. Fused kernels for CPU
/// and CUDA compute the same formula. Names and defaults are those of Apex's functions.
///
/// Shapes: `input` is [*, normalized_shape] with any number of elements, 0 included. An `input` that is not contiguous is
/// copied. `weight` and `bias` have the shape `normalized_shape`. The output is contiguous.
/// Dtypes: float16, bfloat16, float32 and float64. Statistics and arithmetic are float64 for float64 input, and float32
/// otherwise.
/// Gradients: of `input`, `weight` and `bias`, each in the dtype of its tensor. The summation order of weight and bias
/// gradients depends on the shape alone, so results have the same bits for any number of threads. There is no second
/// derivative: a request for one throws NotImplementedError.
/// Devices: CPU and CUDA, on the current stream. No function waits for the device.
/// Casts: within torch's autocast of the device, floating-point arguments are cast to its type first (NORM-06). Where O1 or O4
/// is in force, the functions run in FP32, like `torch::layer_norm`. In O2's original model, FP32 input is cast to the type of
/// a 16-bit weight. The `mixed_dtype_` functions accept a mix of dtypes, and only torch's autocast casts their arguments.
/// Errors: RuntimeError for shapes, dtypes or devices that do not fit, ValueError for a negative eps, NotImplementedError for
/// other devices and, in a build without CUDA, for CUDA tensors. Errors are thrown before anything is computed.
/// `memory_efficient`: see `FusedNormOptions`.
namespace apex::normalization {

at::Tensor fused_layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps = 1e-6,
                            bool memory_efficient = false);
/// `weight` and `bias` must have the dtype of `input`. The output has the same dtype.
at::Tensor fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   at::IntArrayRef normalized_shape, double eps = 1e-6, bool memory_efficient = false);
/// The output has the dtype of `weight` and `bias`. `input` has the same dtype, or all of them are float16, bfloat16 or
/// float32.
at::Tensor mixed_dtype_fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                               at::IntArrayRef normalized_shape, double eps = 1e-6,
                                               bool memory_efficient = false);

at::Tensor fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps = 1e-6,
                          bool memory_efficient = false);
/// `weight` must have the dtype of `input`. The output has the same dtype.
at::Tensor fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef normalized_shape,
                                 double eps = 1e-6, bool memory_efficient = false);
/// The output has the dtype of `weight`. `input` has the same dtype, or both are float16, bfloat16 or float32.
at::Tensor mixed_dtype_fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight,
                                             at::IntArrayRef normalized_shape, double eps = 1e-6,
                                             bool memory_efficient = false);

/// RMS normalisation by ATen operators, for any device and any order of derivatives. `weight` may be undefined; a 16-bit
/// `weight` determines the dtype of the output. Apex uses it for CPU tensors; here it runs only if a program calls it by name.
at::Tensor manual_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const at::Tensor& weight, double eps);

}  // namespace apex::normalization
