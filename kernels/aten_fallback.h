#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/plan/plan.h"

// The driver for tensors on a device without a native driver: ATen operators, a few per tensor, on the device's current stream.
// Never waits for the device. Works on CPU tensors too, where scale, axpby and copy give the native driver's bits.
namespace apex::kernels::aten {

// Whether one of `values` is not finite: a bool tensor without dimensions on their device.
at::Tensor has_nonfinite(const at::Tensor& values);

// The sum of float64 values in the fixed order of rules/lanes.h: the same bits on every device.
at::Tensor ordered_sum(const at::Tensor& values);

// Each returns whether a checked input is not finite, in the same form.
at::Tensor scale(const plan::Group& group, at::TensorList in, at::TensorList out, double factor);
at::Tensor unscale(const plan::Group& group, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale);
at::Tensor has_nonfinite(const plan::Group& group, at::TensorList in);
at::Tensor axpby(const plan::Group& group, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                 CheckArg check);

void copy(const plan::Group& group, at::TensorList from, at::TensorList to);

// A float64 tensor of in.size() values on the group's device: the sum of (value * factor)^2, or the largest |value|, over each
// of the group's rows at the row's index, 0 elsewhere. Chunk sums are float32 as in the native drivers, in the order that
// at::sum takes. `factor` is a tensor of one element on any device, or undefined for 1.
at::Tensor sums_of_squares(const plan::Group& group, at::TensorList in, const at::Tensor& factor);
at::Tensor max_magnitudes(const plan::Group& group, at::TensorList in);

// rules::root_of_sum of each: the same bits on every device.
at::Tensor roots_of(const at::Tensor& sums);

}  // namespace apex::kernels::aten
