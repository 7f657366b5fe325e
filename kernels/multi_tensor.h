#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// Operations on whole lists of tensors at once, like Apex's multi_tensor_* kernels. Lists are matched by index.
//
// Shapes: any number of tensors, also none; empty tensors are skipped. The tensors of one index have the same number of
// elements, device and memory layout: contiguous, or another dense layout (such as channels-last) with equal sizes and strides.
// Dtypes: float16, bfloat16, float32 and float64 in any mix, across lists and within a list. Arithmetic is float32, or float64
// for an index with a float64 tensor. Stores round to nearest even; float64 is rounded to 16 bits through float32.
// Devices: any mix of devices across indices. CPU tensors, and CUDA tensors in a library built with CUDA, have drivers; ATen
// operators process all others. Work on a device goes to its current stream. For CUDA tensors it is one launch per device,
// which a CUDA graph can capture. The host waits for a device only if `found_inf` (or the first tensor of a norm) is on the CPU
// while other tensors are not. Aliasing: an output may be one of the inputs of its index (work in place). Any other overlap of
// an output is an error. Autograd: never recorded; each output's version counter rises by at least one. `found_inf`: an int32
// tensor of one element on any device. A call sets it to 1 if a value is not finite, and never resets it. Its earlier value
// does not stop a call: outputs are always written. Errors: c10::Error that names list, index and the values that disagree,
// before anything is changed.
namespace apex::kernels {

// out[i] = in[i] * scale, with `scale` rounded to the precision of the arithmetic. `found_inf` reports non-finite *inputs*
// only: a product too large for the dtype of `out` becomes Inf there without being reported.
// Apex: multi_tensor_scale.
void multi_tensor_scale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, double scale);

// out[i] = in[i] * inv_scale, with a float32 tensor of one element on any device, which is read when the kernel runs.
// Apex: multi_tensor_scale, with the reciprocal of a loss scale on the device.
void multi_tensor_unscale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale);

// Sets `found_inf` if `in` has a non-finite value. Nothing else is written.
// Apex: multi_tensor_scale by 1 in place.
void multi_tensor_check_finite(const at::Tensor& found_inf, at::TensorList in);

// The arguments of multi_tensor_axpby that are checked for non-finite values. The values are Apex's arg_to_check.
enum class CheckArg { both = -1, x = 0, y = 1 };

// out[i] = a * x[i] + b * y[i]: two rounded products and a rounded sum, no fused multiply-add. `found_inf` reports
// non-finite values of the inputs that `check` names.
// Apex: multi_tensor_axpby.
void multi_tensor_axpby(const at::Tensor& found_inf, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                        CheckArg check);

// L2 norms as float32: {norm of all elements, shape [1]; norm of each tensor, shape [in.size()], or [0] if not per_tensor},
// both on the device of the first tensor (of `found_inf` if there is none). An empty tensor has norm 0.
// `found_inf` is set if the result is not finite. That includes a sum of squares that overflows although all inputs are finite:
// squares, and the sum over a chunk of 65,536 elements, are rounded to float32. Sums are taken in float64. The relative error
// of a norm is below 2.5 * 2^-24. The order of all sums depends on the shapes alone: the result has the same bits with any
// number of threads, with the CPU and the CUDA driver, and with tensors on several CPU and CUDA devices. Apex:
// multi_tensor_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor);

// The norms of in[i] * inv_scale: for scaled gradients, their norms after unscaling. `inv_scale` is a float32 tensor of one
// element on any device. Products are rounded to the precision of the arithmetic; `in` is not changed.
// Apex: multi_tensor_unscale_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_unscale_l2norm(const at::Tensor& found_inf, at::TensorList in,
                                                               const at::Tensor& inv_scale, bool per_tensor);

// Largest magnitudes, returned like L2 norms. Exact, except that float64 is rounded to float32. NaN if a value is NaN.
// `found_inf` is set if the largest magnitude is not finite.
// Apex: the norms of its multi_tensor_novograd with norm_type 0.
std::tuple<at::Tensor, at::Tensor> multi_tensor_maxnorm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor);

// to[i] = from[i], converted to the dtype of `to`, such as float32 masters to 16-bit model parameters. Inf and NaN are copied
// like any other value. Apex: its master-to-model copy, a multi_tensor_scale by 1 that ignores the flag.
void multi_tensor_copy(at::TensorList from, at::TensorList to);

}  // namespace apex::kernels
