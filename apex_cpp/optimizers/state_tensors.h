#pragma once

#include <ATen/core/Tensor.h>

#include <string>

// The tensors of a parameter's state. Kernels walk them and the parameter from start to end, so that they have its layout.
namespace apex::optimizers::detail {

/// `kept` with its values in the layout that the parameter has now; zeros of this dtype if there is none yet.
const at::Tensor& kept_like(const at::Tensor& param, at::Tensor& kept, at::ScalarType dtype);

/// The same of a float32 master, which begins as the parameter.
const at::Tensor& master_like(const at::Tensor& param, at::Tensor& master);

/// A tensor that was loaded, on the parameter's device and in its layout, as this dtype.
/// Errors: RuntimeError beginning with the parameter's `name`, for one of another shape.
at::Tensor loaded_like(const at::Tensor& param, const at::Tensor& loaded, at::ScalarType dtype, const std::string& name,
                       const std::string& key);

}  // namespace apex::optimizers::detail
