// Our side of safetensors_package_test.py: writes files for Python's safetensors package, and describes files that it wrote.
//   safetensors_files write FILE          writes a file with every dtype, and prints its description
//   safetensors_files describe FILE...    prints the description of each file, or "error" and the reason
// A description has one line per entry, texts and data in hexadecimal, and an empty line at its end.
#include <ATen/ops/empty.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/amp/checkpoint/safetensors_header.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "tests/checkpoint/raw_safetensors.h"

namespace {

using apex::amp::detail::read_safetensors;
using apex::amp::detail::TensorFile;

std::string hex(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  std::string text = "x";  // an empty text must be seen, too
  for (size_t i = 0; i < bytes; ++i) {
    for (const int digit : {from[i] >> 4, from[i] & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}
std::string hex(const std::string& text) { return hex(text.data(), text.size()); }

std::string description(const TensorFile& file) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : file.metadata) lines.push_back("metadata " + hex(key) + " " + hex(value));
  for (const auto& [name, tensor] : file.tensors) {
    std::string line = "tensor " + hex(name) + " " + apex::amp::detail::safetensors_name(tensor.scalar_type()) + " [";
    for (const int64_t size : tensor.sizes()) line += std::to_string(size) + ",";
    lines.push_back(line + "] " + hex(tensor.const_data_ptr(), tensor.nbytes()));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text + "\n";
}

TensorFile sample() {
  TensorFile file;
  file.metadata = {{"format", "pt"}, {"\xc3\xa4 \"key\"", "a\nb\\"}, {"", ""}};
  unsigned char next = 0;
  for (const auto dtype : apex::test::all_safetensors_dtypes()) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {5}, {2, 3}, {0, 4}, {1, 2, 1, 3}}) {
      if (shape.empty() && dtype == c10::ScalarType::Float4_e2m1fn_x2) continue;
      const at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype));
      auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
      for (size_t i = 0; i < tensor.nbytes(); ++i, next += 37) bytes[i] = dtype == at::kBool ? next & 1 : next;
      file.tensors.emplace_back(std::string("\xe2\x82\xac.") + c10::toString(dtype) + std::to_string(file.tensors.size()),
                                tensor);
    }
  }
  return file;
}

void describe(const std::string& path) {
  try {
    std::cout << description(read_safetensors(path));
  } catch (const c10::Error& error) {
    std::cout << "error " << hex(std::string(error.what_without_backtrace())) << "\n\n";
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 2 && words[0] == "write") {
    apex::amp::detail::write_safetensors(words[1], sample());
    std::cout << description(sample());
  } else if (words.size() > 1 && words[0] == "describe") {
    c10::SetStackTraceFetcher([] { return std::string(); });
    for (size_t i = 1; i < words.size(); ++i) describe(words[i]);
  } else {
    std::cerr << "usage: safetensors_files write FILE | describe FILE...\n";
    return 2;
  }
}
