#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace apex::amp::detail {

/// A file that is read from front to back, its size known from the start. Errors: c10::Error naming path and reason.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  /// Reads exactly that many bytes; a file that ends before is an error.
  void read(void* data, size_t bytes);

 private:
  std::string path_;
  int file_;
  uint64_t size_ = 0;
};

}  // namespace apex::amp::detail
