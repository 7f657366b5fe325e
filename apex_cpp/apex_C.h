#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Apex: the module apex_C (csrc/flatten_unflatten.cpp).
namespace apex::apex_C {

/// The elements of all tensors, one after the other, in a new tensor of one dimension. Tensors of any shapes, of one dtype, on
/// one device; at least one. Copies, and does not synchronise.
at::Tensor flatten(std::vector<at::Tensor> tensors);

/// What `flatten` of tensors shaped as these gave, in views of `flat` that have the tensors' shapes.
std::vector<at::Tensor> unflatten(const at::Tensor& flat, std::vector<at::Tensor> tensors);

}  // namespace apex::apex_C

// Apex's C++ functions over the memory of dense tensors, for ported code. Apex: the module apex_C.
