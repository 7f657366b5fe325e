#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include <apex_cpp/optimizers/options.h>

// Float32 masters that are stored as bfloat16 parameters and remainders (kernels/rules/remainder.h, which says how both round).
// On any device, without synchronisation. A step joins and splits them in its kernel; these functions are for the rest.
namespace apex::optimizers::detail {

/// Whether `storage` stores the master of a parameter of this dtype as a remainder.
bool has_remainder(at::ScalarType dtype, MasterStorage storage);

/// Errors: RuntimeError naming the parameter if it is float16, and `storage` is not float32.
void check_splits(size_t group, size_t position, const at::Tensor& param, MasterStorage storage);

/// int16 or int8.
at::ScalarType remainder_dtype(MasterStorage storage);

/// The float32 values of a bfloat16 parameter and its remainder.
at::Tensor joined(const at::Tensor& param, const at::Tensor& remainder);

/// Writes float32 values to a bfloat16 parameter and its remainder, which may be undefined.
void split_into(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder);

/// Writes the remainder alone of float32 values, of which `param` has the bfloat16 values, however they were rounded: what the
/// remainder cannot hold is cut off, 2^-8 of a unit in the last place of the bfloat16 at most. Where `param` has another value,
/// the remainder is that of `split_into`.
void write_remainder(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder);

/// The remainder of a loaded state, with zeros if there is none, for a parameter that is stored like this; undefined otherwise.
/// Errors: RuntimeError beginning with the parameter's `name` if only the file has a remainder.
at::Tensor loaded_remainder(const at::Tensor& param, const at::Tensor& loaded, MasterStorage storage, const std::string& name);

}  // namespace apex::optimizers::detail
