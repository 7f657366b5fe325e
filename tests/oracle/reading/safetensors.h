#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace oracle {

using TensorMap = std::map<std::string, at::Tensor>;

// Reads a safetensors file: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
// The tensors are copies on the CPU. Throws std::runtime_error naming file and tensor when length, dtype, shape or offsets do
// not agree with the file.
TensorMap read_safetensors(const std::filesystem::path& path);

}  // namespace oracle
