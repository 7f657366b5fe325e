#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// Operations on whole lists of tensors at once, the way Apex's multi_tensor_* kernels work. Lists are matched by index.
//
// Shapes: any number of tensors, none included (then nothing happens); empty tensors are skipped. The tensors of one index
// have the same number of elements, device and memory layout: contiguous, or any other dense layout (channels-last, ...)
// with equal sizes and strides.
// Dtypes: float16, bfloat16, float32 and float64 in any mix, across lists and within one. Arithmetic is float32, and float64
// for an index where a float64 tensor takes part. Stores round to nearest even; float64 goes to 16 bits through float32.
// Devices: any mix of devices across indices. CPU tensors, and CUDA tensors in a library built with CUDA, have drivers of their
// own; all others are worked on with ATen operators. Work on a device goes to its current stream, for CUDA tensors in one
// launch per device, which may be captured in a CUDA graph. The host waits for a device only if `found_inf` (or the first
// tensor of a norm) is on the CPU while others are not.
// Aliasing: an output may be one of the inputs of its index (work in place). Any other overlap of an output is an error.
// Autograd: never recorded; each output's version counter rises by at least one.
// `found_inf`: an int32 tensor of one element on any device. Set to 1 when a value is not finite, otherwise left alone:
// flags of several calls add up, and a flag raised before does not stop a call (outputs are always written).
// Errors: c10::Error that names list, index and the values that disagree, before anything is changed.
namespace apex::kernels {

// out[i] = in[i] * scale, with `scale` rounded to the precision of the arithmetic. `found_inf` reports non-finite *inputs*
// only: a product too large for the dtype of `out` becomes Inf there without being reported.
// Apex: multi_tensor_scale.
void multi_tensor_scale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, double scale);

// The same by a factor that is not read before the work is: `inv_scale` is a float32 tensor of one element on any device.
// Apex: multi_tensor_scale, with the reciprocal of a loss scale on the device.
void multi_tensor_unscale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale);

// `found_inf` reports non-finite values of `in`, which is read once; nothing is written.
// Apex: multi_tensor_scale by 1 in place, whose outputs nobody needs.
void multi_tensor_check_finite(const at::Tensor& found_inf, at::TensorList in);

// Which argument of multi_tensor_axpby is searched for non-finite values. The values are Apex's arg_to_check.
enum class CheckArg { both = -1, x = 0, y = 1 };

// out[i] = a * x[i] + b * y[i]: two rounded products and a rounded sum, no fused multiply-add. `found_inf` reports
// non-finite values of the inputs that `check` names.
// Apex: multi_tensor_axpby.
void multi_tensor_axpby(const at::Tensor& found_inf, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                        CheckArg check);

// L2 norms as float32: {norm of all elements, shape [1]; norm of each tensor, shape [in.size()], or [0] if not per_tensor},
// both on the device of the first tensor (of `found_inf` if there is none). An empty tensor has norm 0.
// `found_inf` is set if the result is not finite, also when a sum of squares overflows although all inputs are finite:
// a square, and the sum over a chunk of 65,536 elements, is rounded to float32; sums are taken in float64. So a norm is within
// 2.5 units of 2^-24 of the exact value.
// The order of all sums depends on the shapes alone, so the result has the same bits at any number of threads, with the CPU and
// the CUDA driver, and with tensors on several devices of both.
// Apex: multi_tensor_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor);

// The same norms of in[i] * inv_scale, where `inv_scale` is a float32 tensor of one element on any device: what the gradients'
// norms will be once they are unscaled. Products are rounded to the precision of the arithmetic; `in` is not changed.
// Apex: multi_tensor_unscale_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_unscale_l2norm(const at::Tensor& found_inf, at::TensorList in,
                                                               const at::Tensor& inv_scale, bool per_tensor);

// Largest magnitudes in place of L2 norms, shaped alike and exact but for the rounding of float64 to float32. NaN if a value
// is NaN. `found_inf` is set if the largest is not finite.
// Apex: the norms of its multi_tensor_novograd with norm_type 0.
std::tuple<at::Tensor, at::Tensor> multi_tensor_maxnorm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor);

// to[i] = from[i], converted to the dtype of `to`: float32 masters to 16-bit model parameters, or back. Inf and NaN are
// copied like any other value.
// Apex: its master-to-model copy, a multi_tensor_scale by 1 whose flag nobody reads.
void multi_tensor_copy(at::TensorList from, at::TensorList to);

}  // namespace apex::kernels
