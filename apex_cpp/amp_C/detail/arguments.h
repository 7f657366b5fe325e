#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/optimizers.h"

// Arguments that several functions of amp_C take.
namespace apex::amp_C::detail {

/// Throws unless `tensor` holds one element of `dtype` on `device`.
void check_one_element(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, c10::Device device);

/// Throws unless `tensor` is contiguous and holds `count` elements of float32 on `device`: one for each tensor of a list.
void check_one_per_tensor(const char* op, const char* name, const at::Tensor& tensor, size_t count, c10::Device device);

/// An argument that Apex has as an int: 0 or 1. ValueError for others.
bool choice(const char* op, const char* name, int value);

/// The running means' part of a control, and the number of the step.
void set_moments(const char* op, kernels::MomentControl& control, double beta1, double beta2, double eps, int step,
                 int bias_correction);

/// The same with arguments on the tensors' device, of one element each: `lr` and `inv_scale` float32, `step` int32.
void set_device_moments(const char* op, kernels::MomentControl& control, c10::Device device, double beta1, double beta2,
                        double eps, const at::Tensor& step, int bias_correction, const at::Tensor& lr,
                        const at::Tensor& inv_scale);

}  // namespace apex::amp_C::detail
