#include "tests/oracle/reading/safetensors.h"

#include <ATen/Functions.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/oracle/reading/json.h"

namespace oracle {
namespace {

constexpr size_t kLengthBytes = 8;

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

at::ScalarType dtype_of(const Json& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
      {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};
  auto found = kTypes.find(name.as_string());
  if (found == kTypes.end()) throw std::runtime_error(name.where() + ": dtype '" + name.as_string() + "' is not supported");
  return found->second;
}

uint64_t elements_of(const Json& shape) {
  uint64_t count = 1;
  for (int64_t size : shape.as_ints()) {
    if (size < 0 || (size != 0 && count > (uint64_t{1} << 48) / static_cast<uint64_t>(size))) {
      throw std::runtime_error(shape.where() + ": size " + std::to_string(size) + " cannot be");
    }
    count *= static_cast<uint64_t>(size);
  }
  return count;
}

at::Tensor read_tensor(const std::string& name, const Json& entry, const char* data, uint64_t data_bytes) {
  const at::ScalarType dtype = dtype_of(entry.at("dtype"));
  const std::vector<int64_t> offsets = entry.at("data_offsets").as_ints();
  const uint64_t wanted = elements_of(entry.at("shape")) * c10::elementSize(dtype);
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] || static_cast<uint64_t>(offsets[1]) > data_bytes) {
    throw std::runtime_error(entry.where() + ": tensor '" + name + "': data_offsets do not lie in the file's " +
                             std::to_string(data_bytes) + " data bytes");
  }
  if (static_cast<uint64_t>(offsets[1] - offsets[0]) != wanted) {
    throw std::runtime_error(entry.where() + ": tensor '" + name + "': shape and dtype need " + std::to_string(wanted) +
                             " bytes, data_offsets span " + std::to_string(offsets[1] - offsets[0]));
  }
  at::Tensor tensor = at::empty(entry.at("shape").as_ints(), at::TensorOptions().dtype(dtype));
  if (wanted > 0) std::memcpy(tensor.data_ptr(), data + offsets[0], wanted);
  return tensor;
}

}  // namespace

TensorMap read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_bytes(path);
  if (bytes.size() < kLengthBytes) throw std::runtime_error(path.string() + ": too short for a safetensors file");
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  if (header_bytes > bytes.size() - kLengthBytes) {
    throw std::runtime_error(path.string() + ": header length " + std::to_string(header_bytes) + " reaches beyond the file's " +
                             std::to_string(bytes.size()) + " bytes");
  }
  const Json header = Json::parse(bytes.substr(kLengthBytes, header_bytes), path.string() + " (header)");
  const size_t data_start = kLengthBytes + header_bytes;
  TensorMap tensors;
  for (const auto& [name, entry] : header.members()) {
    if (name == "__metadata__") continue;
    tensors[name] = read_tensor(name, entry, bytes.data() + data_start, bytes.size() - data_start);
  }
  return tensors;
}

}  // namespace oracle
