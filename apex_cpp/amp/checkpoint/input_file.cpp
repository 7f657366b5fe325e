#include <apex_cpp/amp/checkpoint/input_file.h>

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace apex::amp::detail {

// O_NONBLOCK: opening a pipe must not wait for a writer.
InputFile::InputFile(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  TORCH_CHECK(file_ >= 0, "cannot read '", path, "': ", std::strerror(errno), ". Check the path and its permissions.");
  struct stat info {};
  const bool regular = ::fstat(file_, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular) ::close(file_);  // no destructor runs when a constructor throws
  TORCH_CHECK(regular, "cannot read '", path, "': it is not a regular file. Check the path.");
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(void* data, size_t bytes) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(file_, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, "cannot read '", path_, "': ", std::strerror(errno), ". Check the disk.");
    TORCH_CHECK(got > 0, "cannot read '", path_, "': it ended while it was read, ", bytes,
                " bytes early. Is another program writing to it?");
    to += got;
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace apex::amp::detail
