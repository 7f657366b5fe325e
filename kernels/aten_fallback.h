#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/plan/plan.h"

// The driver for devices other than CPU and CUDA: a few ATen operators per tensor, on the device's current stream. Never waits
// for the device. On CPU tensors scale, axpby and copy give the CPU driver's bits, which tests check.
namespace apex::kernels::aten {

// Whether one of `values` is not finite: a bool tensor without dimensions, on their device.
at::Tensor has_nonfinite(const at::Tensor& values);

// The sum of float64 values in the fixed order of rules/rule.h: the same bits on every device.
at::Tensor ordered_sum(const at::Tensor& values);

// Each returns such a bool tensor: whether a checked input is not finite.
at::Tensor scale(const plan::Group& group, at::TensorList in, at::TensorList out, double factor);
at::Tensor unscale(const plan::Group& group, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale);
at::Tensor has_nonfinite(const plan::Group& group, at::TensorList in);
at::Tensor axpby(const plan::Group& group, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                 CheckArg check);

void copy(const plan::Group& group, at::TensorList from, at::TensorList to);

// For each tensor, by index: the sum of (value * factor)^2, or the largest |value|, as float64 on the group's device. The value
// is 0 for tensors of other groups. Chunk sums are rounded to float32 as in the other drivers, but taken in the order of
// at::sum. `factor` is a tensor of one element on any device, or undefined for 1.
at::Tensor sums_of_squares(const plan::Group& group, at::TensorList in, const at::Tensor& factor);
at::Tensor max_magnitudes(const plan::Group& group, at::TensorList in);

// rules::root_of_sum of each value: the same bits on every device.
at::Tensor roots_of(const at::Tensor& sums);

}  // namespace apex::kernels::aten
