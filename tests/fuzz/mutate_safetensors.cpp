// Mutates the input of targets that read safetensors files.
#include <apex_cpp/amp/checkpoint/safetensors_header.h>
#include <apex_cpp/files/atomic_file.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <iterator>

#include "tests/checkpoint/raw_safetensors.h"
#include "tests/fuzz/mutate_text.h"
#include "tests/fuzz/target.h"

namespace apex::fuzz {
namespace {

const std::vector<std::string> kWords = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         ",",
                                         ":",
                                         "[[",
                                         "{\"a\":",
                                         "\"dtype\":",
                                         "\"shape\":",
                                         "\"F32\"",
                                         "\"BOOL\"",
                                         "\"F4\"",
                                         "null",
                                         "true",
                                         " ",
                                         "\\u0000",
                                         "\\ud800",
                                         "\\\"",
                                         "\xff",
                                         "\xc3\xa4",
                                         "[0,0]",
                                         "\"a\":",
                                         "\"data_offsets\":",
                                         "\"__metadata__\":{",
                                         "\"apex_cpp.crc32c\":\"",
                                         "\"apex_cpp.format\":\"1\","};

struct Parts {
  std::string header, data;
};

Parts parts_of(const std::string& file) {
  if (file.size() < 8) return {file, ""};
  const std::string header = test::header_of(file);
  return {header, file.substr(8 + header.size())};
}

void edit_metadata(amp::detail::TensorHeader& header, const std::vector<std::string>& corpus, Random& random) {
  if (header.metadata.empty()) return;
  auto value = header.metadata.begin();
  std::advance(value, static_cast<std::ptrdiff_t>(pick(random, header.metadata.size())));
  value->second = edit_text(value->second, corpus, kWords, random);
}

/// Changes the shape or dtype of one tensor, with offsets that match it but not the actual data.
void edit_tensor(amp::detail::TensorHeader& header, Random& random) {
  static const int64_t kSizes[] = {0, 1, 2, 3, 1000, int64_t{1} << 20, int64_t{1} << 31, int64_t{1} << 40, int64_t{1} << 61};
  if (header.tensors.empty()) return;
  auto& edited = header.tensors[pick(random, header.tensors.size())];
  if (one_in(random, 2)) edited.dtype = header.tensors[pick(random, header.tensors.size())].dtype;
  edited.shape.resize(pick(random, 4), 1);
  for (auto& size : edited.shape) size = one_in(random, 2) ? size : kSizes[pick(random, std::size(kSizes))];
  uint64_t end = 0;
  for (auto& tensor : header.tensors) {
    tensor.begin = end;
    uint64_t bytes = c10::elementSize(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    tensor.end = end += bytes;
  }
}

/// The header with one change and otherwise valid.
std::string edit_header(const Parts& parts, const std::vector<std::string>& corpus, Random& random) {
  try {
    auto header = amp::detail::parse_header(parts.header, parts.data.size(), "");
    if (one_in(random, 2)) {
      edit_metadata(header, corpus, random);
    } else {
      edit_tensor(header, random);
    }
    return amp::detail::header_text(header);
  } catch (const c10::Error&) {
    return parts.header;  // the entry, or its mutation, cannot be expressed in a header
  }
}

void repair_checksum(std::string& file, size_t header_bytes) {
  const std::string before = "\"apex_cpp.crc32c\":\"";
  const size_t found = file.find(before);
  const size_t digits = found + before.size();
  if (found == std::string::npos || digits + 8 > 8 + header_bytes) return;
  file.replace(digits, 8, "00000000");
  amp::detail::Crc32c checksum;
  checksum.add(file.data(), file.size());
  char text[9];
  std::snprintf(text, sizeof text, "%08x", checksum.value());
  file.replace(digits, 8, text);
}

}  // namespace

// Damages a file as bytes, or its header, metadata and data separately. It usually repairs the header's length, and every other
// time the checksum, so that the reader reaches the code behind these checks.
std::string mutate(std::string file, const std::vector<std::string>& corpus, Random& random) {
  if (one_in(random, 5)) return mutate_bytes(std::move(file), corpus, random);
  Parts parts = parts_of(file);
  for (size_t edits = 1 + pick(random, 3); edits > 0; --edits) {
    switch (pick(random, 4)) {
      case 0:
        parts.data = mutate_bytes(parts.data, corpus, random);
        break;
      case 1:
        parts.header = edit_header(parts, corpus, random);
        break;
      default:
        parts.header = edit_text(parts.header, corpus, kWords, random);
    }
  }
  const uint64_t off = one_in(random, 8) ? uint64_t{1} << pick(random, 64) : 0;
  std::string result = test::raw_safetensors(parts.header.size() + off, parts.header, parts.data);
  if (one_in(random, 2)) repair_checksum(result, parts.header.size());
  return result;
}

}  // namespace apex::fuzz
