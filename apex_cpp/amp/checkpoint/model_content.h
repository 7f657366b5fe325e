#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include <apex_cpp/amp/checkpoint/content.h>

namespace apex::amp::detail {

/// A model's parameters and buffers by their full names, each widened to float32 where it has 16 bits.
std::vector<ModelTensor> content_of(const torch::nn::Module& module);

/// Checks that `content` has exactly the tensors of `module`, of their shapes; floating dtypes may differ. Errors: c10::Error
/// that names all tensors that do not fit.
void check_fits(const torch::nn::Module& module, const std::vector<ModelTensor>& content, const std::string& model_name);

/// "model0/fc.weight"
std::string full_name(size_t model, const std::string& name);

}  // namespace apex::amp::detail
