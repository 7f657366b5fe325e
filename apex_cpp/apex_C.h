#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Functions of Apex's module apex_C (csrc/flatten_unflatten.cpp), for ported code.
namespace apex::apex_C {

/// Copies the elements of all tensors, in order, into a new tensor of one dimension. Takes one tensor or more, of any shapes,
/// of one dtype, on one device. Does not synchronise. Errors: c10::Error for several dtypes.
at::Tensor flatten(std::vector<at::Tensor> tensors);

/// The reverse of `flatten`: returns views of `flat` with the shapes of `tensors`.
std::vector<at::Tensor> unflatten(const at::Tensor& flat, std::vector<at::Tensor> tensors);

}  // namespace apex::apex_C
