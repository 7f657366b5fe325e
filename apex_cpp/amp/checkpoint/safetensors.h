#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// The contents of a safetensors file.
struct TensorFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes a safetensors file atomically (see AtomicFile). Tensors may be on any device, in any strided layout, and may share
/// memory. Each is written whole, one after the other, without a copy of all. A checksum of the whole file goes into the
/// metadata under the library's own keys. Errors, before anything is written: ValueError with the tensor's name for a name that
/// occurs twice or is not UTF-8, for a dtype that the format lacks (quantized, complex half and double), and for undefined,
/// sparse and meta tensors.
void write_safetensors(const std::string& path, const TensorFile& file);

/// Reads a safetensors file of any program into CPU tensors, in the order of its header. Checks the header against the file's
/// size before it allocates memory. Compares the checksum if the file has one, and does not return it in the metadata. Errors:
/// c10::Error with the file, the tensor and the wrong value.
TensorFile read_safetensors(const std::string& path);

}  // namespace apex::amp::detail
