#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// The parameters and buffers of `module` by their full names, the tensors themselves, in `Module`'s order. All are defined.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module);

/// What a checkpoint has of a parameter or buffer: the tensor itself, or a float32 copy of one with 16 bits (MODEL-08).
at::Tensor widened(const at::Tensor& tensor);

/// Whether somebody else has the memory of `tensor` as well: a view, or a tensor that `set_data` has tied to it.
bool has_shared_memory(const at::Tensor& tensor);
/// Whether two tensors are one memory in one layout, as parameters are that `a.set_data(b)` has tied.
bool are_tied(const at::Tensor& a, const at::Tensor& b);

/// Values can be copied to the tensor from here on: one whose elements share memory, as an expanded one's do, gets memory for
/// each, with the same values.
void give_each_element_memory(const at::Tensor& tensor);

}  // namespace apex::amp::detail
