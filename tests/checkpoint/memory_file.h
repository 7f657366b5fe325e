#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace apex::test {

/// A file in memory, for tests that write thousands of them.
class MemoryFile {
 public:
  MemoryFile(const void* data, size_t bytes) : file_(::memfd_create("test", MFD_CLOEXEC)) {
    const bool written = file_ >= 0 && ::write(file_, data, bytes) == static_cast<ssize_t>(bytes);
    if (!written) throw std::runtime_error("a file in memory could not be made");
  }
  explicit MemoryFile(const std::string& content) : MemoryFile(content.data(), content.size()) {}
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace apex::test
