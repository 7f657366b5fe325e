#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

struct Session;

/// The parameters and buffers of `module` by their full names, the tensors themselves, in `Module`'s order. All are defined.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module);

/// What a checkpoint has of a parameter or buffer: the tensor itself, or a float32 copy of one with 16 bits (MODEL-08).
at::Tensor widened(const at::Tensor& tensor);

/// Writes what a checkpoint has into a parameter or buffer, rounded to its dtype, and into the FP32 master that `session` keeps
/// for it; without the latter the next step would bring back the weight from before. `session` may be null.
void assign(at::Tensor tensor, const at::Tensor& value, const Session* session);

}  // namespace apex::amp::detail
