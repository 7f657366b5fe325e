#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// What a safetensors file holds.
struct TensorFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes a safetensors file, atomically (see AtomicFile). Tensors may be on any device, in any strided layout, and may share
/// memory: each is written whole, one after the other, without a copy of them all. A checksum over the whole file is put into
/// the metadata under keys of the library's own.
/// Errors, before anything is written: ValueError naming the tensor for a name that occurs twice or is not UTF-8, for a dtype
/// without a name in the format (quantized, complex half and double), for undefined, sparse and meta tensors.
void write_safetensors(const std::string& path, const TensorFile& file);

/// Reads a safetensors file, whoever wrote it, into tensors on the CPU, in the order of its header. Everything that the header
/// says is checked before it is acted on: memory is taken only for what the file is large enough to hold. The checksum is
/// compared if the file has one, and is not part of the metadata returned.
/// Errors: c10::Error naming the file, the tensor and the value that is wrong.
TensorFile read_safetensors(const std::string& path);

}  // namespace apex::amp::detail
