#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>

// Modules cast in place, for `amp::initialize` and under fp16_utils's names, where they are described.
namespace apex::amp::detail {

void convert_module(torch::nn::Module& module, c10::ScalarType dtype);
void convert_network(torch::nn::Module& network, c10::ScalarType dtype);
void convert_all(torch::nn::Module& network, c10::ScalarType dtype);
/// All modules but those that `spares` says, which gets each one's path within the network, "" for itself.
using SparesModule = std::function<bool(const std::string& path, const torch::nn::Module& module)>;
void convert_others(torch::nn::Module& network, c10::ScalarType dtype, const SparesModule& spares);
bool is_affine_batch_norm(const torch::nn::Module& module);

}  // namespace apex::amp::detail
