#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// One tensor in the header of a safetensors file.
struct TensorInfo {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offsets into the file's data, which starts after the header
  uint64_t end = 0;
};

struct TensorHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// The longest header that readers of the format accept.
constexpr uint64_t kLongestHeader = 100'000'000;

/// The format's name for a dtype ("BF16"); null if the format lacks the dtype.
const char* safetensors_name(c10::ScalarType dtype);

/// A name for messages: in quotes, with control characters escaped, and cut if it is very long.
std::string shown(const std::string& name);

/// The header's JSON text, padded with spaces so that data starts at a multiple of eight.
/// Errors: ValueError with a text that is not UTF-8.
std::string header_text(const TensorHeader& header);

/// Reads and checks a header: unique names, known dtypes, sizes that do not overflow and agree with the offsets, and offsets
/// that cover `data_bytes` without gaps or overlaps. Errors: c10::Error starting with `source`.
TensorHeader parse_header(const std::string& text, uint64_t data_bytes, const std::string& source);

}  // namespace apex::amp::detail
