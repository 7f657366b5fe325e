#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include <apex_cpp/amp/statistics/tensor_statistics.h>

namespace apex::amp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// One record a tensor, in order, in one pass over memory. Dtypes float16, bfloat16, float32, float64; any shape, number of
/// elements and layout (a tensor whose elements do not fill a piece of memory is copied first). Devices: the CPU, and CUDA in
/// builds with CUDA; tensors of other devices are copied to the CPU first. Waits for the device. The same bits at any number of
/// threads. Names: those given; else the parameter's name in the models of the newest `initialize`, else "tensor 3", counted
/// from 0. Errors: TypeError or ValueError naming a tensor that is undefined, sparse, or of another dtype, before anything is
/// read.
std::vector<TensorStatistics> statistics(const NamedTensors& tensors);
std::vector<TensorStatistics> statistics(const std::vector<at::Tensor>& tensors);

/// Of the parameters of a module, by their names; and of the gradients of those that have one. A tied parameter counts once, by
/// its first name.
std::vector<TensorStatistics> statistics(const torch::nn::Module& module);
std::vector<TensorStatistics> grad_statistics(const torch::nn::Module& module);

}  // namespace apex::amp
